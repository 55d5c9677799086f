"""Block IO: how long reads of a latency-sensitive pod take beside best-effort writers, without limits and with them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.units import MIB
from tests.bench.limited_pairs import add_pairs, paired_p99, procs
from tests.bench.report import CannotMeasure, Report
from tests.host.rigs.block_node import BlockNode
from tests.support.loop_disk import LoopDisk
from tests.support.nodes import NodeCgroup

_DISK_MIB = 256
_LIMIT = 4 * MIB  # bytes a second of all best-effort pods
_WRITE_MIB = 16  # in one write(2): as many requests as the queue takes
_WRITERS = 4  # of each container, so that the queue of the disk is never empty

# Reads 4 KiB at random places past the page cache, 5 ms apart, and prints how long each took in ms.
_READER = """
import mmap, os, random, sys, time
fd, end = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), time.monotonic() + float(sys.argv[3])
size, buffer = int(sys.argv[2]), mmap.mmap(-1, 4096)
while time.monotonic() < end:
    at = random.randrange(size // 4096) * 4096
    began = time.monotonic()
    os.preadv(fd, [buffer], at)
    print((time.monotonic() - began) * 1e3)
    time.sleep(0.005)
"""
# Best-effort for the scheduler, too: what is felt is not the CPU that they take.
_WRITER = """
echo $$ >"$1"
renice -n 19 $$ >/dev/null
while :; do dd if=/dev/zero of="$2" bs=%dM count=%d oflag=direct 2>/dev/null; done
"""


def block_io(report: Report) -> None:
    """Take pairs of windows: the class is disabled in one and enabled in the other, in turns."""
    try:
        hierarchy = find_memory_hierarchy()
        with (
            tempfile.TemporaryDirectory() as folder,
            LoopDisk(Path(folder), _DISK_MIB) as disk,
            NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as node,
        ):
            blocks = BlockNode(node, disk)
            try:
                _measure(report, blocks, Path(folder))
            finally:
                blocks.close()
    except (SupportError, OSError) as error:
        raise CannotMeasure(f"needs a loop device and a hierarchy blkio or io that can be written: {error}") from None


def _measure(report: Report, blocks: BlockNode, folder: Path) -> None:
    pairs, seconds = (4, 1.5) if report.quick else (20, 3.0)
    without, limited = paired_p99(
        report,
        blocks,
        folder,
        _LIMIT,
        pairs,
        lambda: [_writer(blocks, each) for each in blocks.be * _WRITERS],
        lambda: _reads(blocks, seconds),
    )
    writing = f"{2 * _WRITERS} writers of {_WRITE_MIB} MiB"
    method = f"p99 of reads of 4 KiB in windows of {seconds:g} s beside {writing}, {pairs} pairs"
    add_pairs(report, "read", method, without, limited)


def _writer(blocks: BlockNode, container: Path) -> subprocess.Popen[bytes]:
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "sh",
        "-ec",
        _WRITER % (_WRITE_MIB, _DISK_MIB // _WRITE_MIB),
        "sh",
        str(procs(blocks, container)),
        blocks.disk.path,
    ]
    return subprocess.Popen(command, start_new_session=True)


def _reads(blocks: BlockNode, seconds: float) -> list[float]:
    joins, path = procs(blocks, blocks.ls), blocks.disk.path
    script = f'echo $$ > {joins} && exec {sys.executable} -c "$1" {path} {_DISK_MIB * MIB} {seconds}'
    done = subprocess.run(["sh", "-ec", script, "sh", _READER], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]
