"""Dirty pages: commits of a latency-sensitive pod beside buffered best-effort writers, limited and not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.units import MIB
from tests.bench.block_io import await_limits
from tests.bench.figure import at_least, figure, percentile
from tests.bench.report import CannotMeasure, Report
from tests.host.block_node import GATES, BlockNode
from tests.support.agent_process import AgentProcess
from tests.support.loop_disk import LoopDisk
from tests.support.nodes import NodeCgroup

_DISK_MIB = 512
_NODE_MIB = 1024
_FILE_MIB = 96  # of each writer, written again and again
_LIMIT = 8 * MIB  # bytes a second of all best-effort pods
_WANTED_PERCENT = 30

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
    pairs, seconds = (3, 3.0) if report.quick else (int(os.environ.get("KOORDEBPF_PAIRS", "20")), 5.0)
    asked = [blocks.block(writeBPS=_LIMIT)]
    manifest = blocks.write(folder, asked, enable=False)
    writers = [_writer(blocks, each, mount / f"file-{number}") for number, each in enumerate(blocks.be)]
    without, limited = list[float](), list[float]()
    try:
        with AgentProcess(blocks.node, manifest, "--feature-gates", GATES):
            for pair in range(pairs):
                p99 = {}
                # The first one of a pair changes, so that what drifts falls on both.
                for is_limited in (bool(pair % 2), not pair % 2):
                    blocks.write(folder, asked, enable=is_limited)
                    await_limits(blocks, _LIMIT, is_limited=is_limited)
                    p99[is_limited] = percentile(_commits(blocks, mount / "log", seconds), 0.99)
                without.append(p99[False])
                limited.append(p99[True])
                report.say(f"pair {pair + 1}: p99 {p99[False]:.3g} ms, limited {p99[True]:.3g} ms")
    finally:
        for each in writers:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    method = f"p99 of commits in windows of {seconds:g} s beside 2 buffered writers on one ext4, {pairs} pairs"
    report.add(figure("p99 of a commit, writers not limited", "ms", without, method))
    report.add(figure("p99 of a commit, writers limited", "ms", limited, method))
    gains = [100 * (1 - after / before) for before, after in zip(without, limited, strict=True)]
    better = sum(after < before for before, after in zip(without, limited, strict=True))
    report.add(at_least("p99 of a commit is better by", "%", percentile(gains, 0.5), _WANTED_PERCENT, method))
    report.add(at_least("pairs in which it is better", "%", 100 * better / pairs, 90, method))


def _procs(blocks: BlockNode, container: Path) -> Path:
    return blocks.file(container, CgroupFile.IO_WRITE_BPS).parent / "cgroup.procs"


def _writer(blocks: BlockNode, container: Path, file: Path) -> subprocess.Popen[bytes]:
    script = _WRITER % _FILE_MIB
    command = ["setpriv", "--pdeathsig", "KILL", "sh", "-ec", script, "sh", str(_procs(blocks, container)), str(file)]
    return subprocess.Popen(command, start_new_session=True)


def _commits(blocks: BlockNode, file: Path, seconds: float) -> list[float]:
    time.sleep(1)  # what was dirty before is on its way
    script = f'echo $$ > {_procs(blocks, blocks.ls)} && exec {sys.executable} -c "$1" {file} {seconds}'
    done = subprocess.run(["sh", "-ec", script, "sh", _COMMITTER], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]
