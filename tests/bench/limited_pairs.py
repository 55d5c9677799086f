"""Pairs of windows beside best-effort writers: limited by block IO in one, and not in the other."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.tables import Table
from tests.bench.figure import at_least, figure, percentile
from tests.bench.report import Report
from tests.host.rigs.block_node import GATES, BlockNode
from tests.support.agent_process import AgentProcess
from tests.support.patience import patience

_WANTED_PERCENT = 30  # by so much the p99 is to be better


def procs(blocks: BlockNode, container: Path) -> Path:
    """Return what a process writes its number to, to be in a container for block IO."""
    return blocks.file(container, CgroupFile.IO_WRITE_BPS).parent / "cgroup.procs"


def paired_p99(
    report: Report,
    blocks: BlockNode,
    folder: Path,
    limit: int,
    pairs: int,
    writers: Callable[[], Sequence[subprocess.Popen[bytes]]],
    sample: Callable[[], list[float]],
) -> tuple[list[float], list[float]]:
    """Return the p99 of each window's samples in ms, without the limit in bytes a second and with it.

    The class is disabled in one window of a pair and enabled in the other, in turns. `writers` starts process groups,
    which are killed at the end.
    """
    asked = [blocks.block(writeBPS=limit)]
    manifest = blocks.write(folder, asked, enable=False)
    started = writers()
    without, limited = list[float](), list[float]()
    try:
        with AgentProcess(blocks.node, manifest, "--feature-gates", GATES):
            for pair in range(pairs):
                p99 = {}
                # The first one of a pair changes, so that what drifts falls on both.
                for is_limited in (bool(pair % 2), not pair % 2):
                    blocks.write(folder, asked, enable=is_limited)
                    _await(blocks, limit, is_limited=is_limited)
                    p99[is_limited] = percentile(sample(), 0.99)
                without.append(p99[False])
                limited.append(p99[True])
                report.say(f"pair {pair + 1}: p99 {p99[False]:.3g} ms, limited {p99[True]:.3g} ms")
    finally:
        for each in started:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    return without, limited


def add_pairs(report: Report, what: str, method: str, without: list[float], limited: list[float]) -> None:
    """Add the p99 of `what` without the limit and with it, by how much it is better, and in how many pairs."""
    pairs = list(zip(without, limited, strict=True))
    report.add(figure(f"p99 of a {what}, writers not limited", "ms", without, method))
    report.add(figure(f"p99 of a {what}, writers limited", "ms", limited, method))
    gain = percentile([100 * (1 - after / before) for before, after in pairs], 0.5)
    report.add(at_least(f"p99 of a {what} is better by", "%", gain, _WANTED_PERCENT, f"median of pairs; {method}"))
    better = sum(after < before for before, after in pairs)
    report.add(at_least("pairs in which it is better", "%", 100 * better / len(pairs), 90, method))


def _await(blocks: BlockNode, limit: int, *, is_limited: bool) -> None:
    wanted = Table.of({blocks.disk.number: blocks.part(limit)} if is_limited else {})
    began = time.monotonic()
    while any(blocks.value(each, CgroupFile.IO_WRITE_BPS) != wanted for each in blocks.limited):
        if time.monotonic() - began > patience(30):
            raise RuntimeError(f"the limits are not {wanted} after {patience(30):g} s")
        time.sleep(0.02)
    time.sleep(1)  # what was sent to the disk before is done
