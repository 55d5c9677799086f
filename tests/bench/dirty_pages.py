"""Dirty pages: commits of a latency-sensitive pod beside buffered best-effort writers, limited and not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.units import MIB
from tests.bench.limited_pairs import add_pairs, paired_p99, procs
from tests.bench.report import CannotMeasure, Report, pair_count
from tests.host.rigs.block_node import BlockNode
from tests.support.loop_disk import LoopDisk
from tests.support.nodes import NodeCgroup

_DISK_MIB = 512
_NODE_MIB = 1024
_FILE_MIB = 96  # of each writer, written again and again
_LIMIT = 8 * MIB  # bytes a second of all best-effort pods

# Appends 4 KiB and waits until the disk has it, 20 ms apart, as a database's log; prints how long each took in ms.
_COMMITTER = """
import os, sys, time
fd, end = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    began = time.monotonic()
    os.write(fd, bytes(4096))
    os.fdatasync(fd)
    print((time.monotonic() - began) * 1e3)
    time.sleep(0.02)
"""
_WRITER = """
echo $$ >"$1"
renice -n 19 $$ >/dev/null
while :; do dd if=/dev/zero of="$2" bs=1M count=%d conv=notrunc 2>/dev/null; done
"""


def dirty_pages(report: Report) -> None:
    """Take pairs of windows on one ext4: the class is disabled in one and enabled in the other, in turns."""
    try:
        hierarchy = find_memory_hierarchy()
        with (
            tempfile.TemporaryDirectory() as folder,
            LoopDisk(Path(folder), _DISK_MIB) as disk,
            NodeCgroup(hierarchy.mount_point, hierarchy.version, _NODE_MIB * MIB) as node,
        ):
            mount = Path(folder, "mount")
            mount.mkdir()
            subprocess.run(["mkfs.ext4", "-q", disk.path], check=True)
            subprocess.run(["mount", disk.path, mount], check=True)
            try:
                blocks = BlockNode(node, disk)
                try:
                    _measure(report, blocks, Path(folder), mount)
                finally:
                    blocks.close()
            finally:
                subprocess.run(["umount", mount], check=True)
    except (SupportError, OSError, subprocess.CalledProcessError) as error:
        raise CannotMeasure(f"needs a loop device, ext4 and a hierarchy blkio or io to write: {error}") from None


def _measure(report: Report, blocks: BlockNode, folder: Path, mount: Path) -> None:
    pairs, seconds = (3, 3.0) if report.quick else (pair_count(20), 5.0)
    without, limited = paired_p99(
        report,
        blocks,
        folder,
        _LIMIT,
        pairs,
        lambda: [_writer(blocks, each, mount / f"file-{number}") for number, each in enumerate(blocks.be)],
        lambda: _commits(blocks, mount / "log", seconds),
    )
    method = f"p99 of commits in windows of {seconds:g} s beside 2 buffered writers on one ext4, {pairs} pairs"
    add_pairs(report, "commit", method, without, limited)


def _writer(blocks: BlockNode, container: Path, file: Path) -> subprocess.Popen[bytes]:
    script = _WRITER % _FILE_MIB
    command = ["setpriv", "--pdeathsig", "KILL", "sh", "-ec", script, "sh", str(procs(blocks, container)), str(file)]
    return subprocess.Popen(command, start_new_session=True)


def _commits(blocks: BlockNode, file: Path, seconds: float) -> list[float]:
    time.sleep(1)  # what was dirty before is on its way
    script = f'echo $$ > {procs(blocks, blocks.ls)} && exec {sys.executable} -c "$1" {file} {seconds}'
    done = subprocess.run(["sh", "-ec", script, "sh", _COMMITTER], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]
