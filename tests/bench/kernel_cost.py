"""What the programs add to a reclaim: CPU time with and without them in turns, and the kernel's own clock for BPF."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.units import NS_PER_MS
from tests.bench.figure import Figure, figure
from tests.bench.report import CannotMeasure, Report
from tests.support.bpf_ids import held_by, program, runs_counted
from tests.support.loads.storms import Storm, StormResult, can_count
from tests.support.nodes import MIB, NodeCgroup
from tests.support.tracefs import NO_TRACEFS

_RUN_MS = 250  # short: what the machine does beside it changes less from one run to the next
_REACH_NS = 1000


def kernel_cost(report: Report) -> None:
    """Let a task reclaim in its container's limit, the programs attached and not, in turns."""
    if not can_count():
        raise CannotMeasure(NO_TRACEFS)
    hierarchy = find_memory_hierarchy()
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as node:
        (container,) = node.add_pod("reclaims")
        _paired(report, node, container)
        _by_the_kernels_clock(report, node, container)


@contextmanager
def _attached(node: NodeCgroup) -> Iterator[None]:
    with NodeWatch(open_scope(find_memory_hierarchy(), node.path), None, NS_PER_MS):
        yield


def _run(container: Path) -> StormResult:
    storm = Storm(container, _RUN_MS)
    try:
        return storm.result(timeout_s=60)
    finally:
        storm.stop()


def _paired(report: Report, node: NodeCgroup, container: Path) -> None:
    pairs = 10 if report.quick else 100
    without_ns, added_ns, added_percent = [], [], []
    for pair in range(pairs):
        # Each runs first in half of the pairs, so that a machine that gets faster or slower favours neither.
        before = None if pair % 2 else _per_episode_ns(container)
        with _attached(node):
            attached = _per_episode_ns(container)
        without = before or _per_episode_ns(container)
        without_ns.append(without)
        added_ns.append(attached - without)
        added_percent.append((attached / without - 1) * 100)
    method = (
        f"CPU time of a task ÷ its reclaims, runs of {_RUN_MS} ms; the reclaims find nothing, so they are the shortest"
    )
    report.add(figure("a memcg reclaim, nothing attached", "ns", without_ns, method))
    low, high = median_interval(added_ns)
    method = f"the same, attached minus not, in pairs; 95 % interval of the median: {low:.0f} to {high:.0f} ns"
    report.add(figure("added to it, programs attached", "ns", added_ns, method, reach_p50=_REACH_NS))
    low, high = median_interval(added_percent)
    method = f"the same as a share; 95 % interval of the median: {low:.1f} to {high:.1f} %"
    report.add(figure("added to it, programs attached", "%", added_percent, method))


def _per_episode_ns(container: Path) -> float:
    result = _run(container)
    return result.cpu_ns / result.episodes


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the two samples between which the median lies with 95 %, whatever their distribution is."""
    ordered = sorted(samples)
    # The number of samples below the median is binomial, half and half.
    below = max(math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2), 0)
    return ordered[below], ordered[len(ordered) - 1 - below]


def _by_the_kernels_clock(report: Report, node: NodeCgroup, container: Path) -> None:
    with runs_counted(), _attached(node):
        # Begin and end have one name: the kernel cuts it at 15 letters.
        held = held_by(os.getpid()).prog
        reclaim = [number for number in held if program(number).name.startswith("on_mm_vmscan_me")]
        _run(container)
        ran = [program(number) for number in reclaim]
    count = sum(each.run_count for each in ran)
    if not count:
        raise CannotMeasure("the programs' runs are not counted here")
    mean = sum(each.run_time_ns for each in ran) / (count / 2)
    method = "mean run time of begin + end (kernel.bpf_stats_enabled), the entry into them left out"
    report.add(Figure("the two programs of a memcg reclaim", "ns", count // 2, mean, mean, mean, method))
