"""Block IO: how long reads of a latency-sensitive pod take beside best-effort writers, without limits and with them."""

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
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.units import MIB
from tests.bench.figure import at_least, figure, percentile
from tests.bench.report import CannotMeasure, Report
from tests.host.block_node import GATES, BlockNode
from tests.support.agent_process import AgentProcess
from tests.support.loop_disk import LoopDisk
from tests.support.nodes import NodeCgroup
from tests.support.patience import patience

_DISK_MIB = 256
_LIMIT = 4 * MIB  # bytes a second of all best-effort pods
_WRITE_MIB = 16  # in one write(2): as many requests as the queue takes
_WRITERS = 4  # of each container, so that the queue of the disk is never empty
_WANTED_PERCENT = 30  # by so much the p99 is to be better

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
    asked = [blocks.block(writeBPS=_LIMIT)]
    manifest = blocks.write(folder, asked, enable=False)
    writers = [_writer(blocks, each) for each in blocks.be * _WRITERS]
    without, limited, better = list[float](), list[float](), 0
    try:
        with AgentProcess(blocks.node, manifest, "--feature-gates", GATES):
            for pair in range(pairs):
                p99 = {}
                # The first one of a pair changes, so that what drifts falls on both.
                for is_limited in (bool(pair % 2), not pair % 2):
                    blocks.write(folder, asked, enable=is_limited)
                    await_limits(blocks, _LIMIT, is_limited=is_limited)
                    p99[is_limited] = percentile(_reads(blocks, seconds), 0.99)
                without.append(p99[False])
                limited.append(p99[True])
                better += p99[True] < p99[False]
                report.say(f"pair {pair + 1}: p99 {p99[False]:.3g} ms, limited {p99[True]:.3g} ms")
    finally:
        for each in writers:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    writing = f"{2 * _WRITERS} writers of {_WRITE_MIB} MiB"
    method = f"p99 of reads of 4 KiB in windows of {seconds:g} s beside {writing}, {pairs} pairs"
    report.add(figure("p99 of a read, writers not limited", "ms", without, method))
    report.add(figure("p99 of a read, writers limited", "ms", limited, method))
    gains = [100 * (1 - after / before) for before, after in zip(without, limited, strict=True)]
    gain = percentile(gains, 0.5)
    report.add(at_least("p99 of a read is better by", "%", gain, _WANTED_PERCENT, f"median of pairs; {method}"))
    report.add(at_least("pairs in which it is better", "%", 100 * better / pairs, 90, method))


def _writer(blocks: BlockNode, container: Path) -> subprocess.Popen[bytes]:
    procs = blocks.file(container, CgroupFile.IO_WRITE_BPS).parent / "cgroup.procs"
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "sh",
        "-ec",
        _WRITER % (_WRITE_MIB, _DISK_MIB // _WRITE_MIB),
        "sh",
        str(procs),
        blocks.disk.path,
    ]
    return subprocess.Popen(command, start_new_session=True)


def _reads(blocks: BlockNode, seconds: float) -> list[float]:
    procs = blocks.file(blocks.ls, CgroupFile.IO_WRITE_BPS).parent / "cgroup.procs"
    script = f'echo $$ > {procs} && exec {sys.executable} -c "$1" {blocks.disk.path} {_DISK_MIB * MIB} {seconds}'
    done = subprocess.run(["sh", "-ec", script, "sh", _READER], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def await_limits(blocks: BlockNode, limit: int, *, is_limited: bool) -> None:
    """Wait until the files have the limit in bytes a second, or none, and a second more."""
    wanted = Table.of({blocks.disk.number: blocks.part(limit)} if is_limited else {})
    began = time.monotonic()
    while any(blocks.value(each, CgroupFile.IO_WRITE_BPS) != wanted for each in blocks.limited):
        if time.monotonic() - began > patience(30):
            raise RuntimeError(f"the limits are not {wanted} after {patience(30):g} s")
        time.sleep(0.02)
    time.sleep(1)  # what was sent to the disk before is done
