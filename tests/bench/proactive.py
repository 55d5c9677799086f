"""Proactive reclaim on one node and none on another at the same time: evictions, what it takes, stalls and cost."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
import zlib
from pathlib import Path

from msgspec.structs import replace

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.bench.figure import Figure, at_least, at_most, figure, percentile
from tests.bench.proactive_node import (
    CACHE_MIB,
    IDLE_MIB,
    NODE_MIB,
    RATE_MIB_S,
    REST_S,
    STEP_PERCENT,
    THRESHOLD_PERCENT,
    WORKS_MIB,
    Half,
    IdleNode,
)
from tests.bench.report import CannotMeasure, Report, pair_count

_GROWS_MIB = (146, 166, 186)  # in turn; by 20, 40 and 60 MiB more than there is room for
_IDLE_S, _SETTLES_S = 60.0, 5.0  # a node that is too full evicts within a second
_LOOK_S = 0.5
_MOST_STALLED_PERCENT, _MOST_CPU_PERCENT = 0.1, 1.0


def proactive(report: Report) -> None:
    """Take KOORDEBPF_PAIRS pairs (20)."""
    hierarchy = find_memory_hierarchy()
    if hierarchy.version == 1 or len(Path("/proc/swaps").read_text().splitlines()) < 2:
        raise CannotMeasure("memory.reclaim needs cgroup v2, and idle anonymous memory swap")
    pairs = 2 if report.quick else pair_count(20)
    report.say(f"1 MiB compressed with zlib: {_yardstick_ms():.1f} ms; the same elsewhere says how slow this CPU is")
    found: dict[bool, list[Half]] = {False: [], True: []}
    try:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, contextlib.ExitStack() as stack:
            made = {
                is_on: stack.enter_context(IdleNode(hierarchy.mount_point, Path(folder) / str(is_on), is_on=is_on))
                for is_on in (False, True)
            }
            nodes = {is_on: node.becomes_ready() for is_on, node in made.items()}
            report.say("both agents are ready")
            for number in range(pairs):
                for is_on, half in _pair(nodes, _grows(number)).items():
                    found[is_on].append(half)
                    report.say(f"{_grows(number)} MiB, gate {'on' if is_on else 'off'}: {_said(half)}")
    except (SupportError, OSError) as error:
        raise CannotMeasure(f"needs a memory hierarchy that can be written: {error}") from None
    _add(report, found[False], found[True])


def _grows(pair: int) -> int:
    return _GROWS_MIB[pair % len(_GROWS_MIB)]


def _said(half: Half) -> str:
    stalled = ", ".join(f"{name} {share:.3f}" for name, share in half.stalled.items())
    back = "" if half.back_ms is None else f", used again in {half.back_ms:.0f} ms"
    return (
        f"{half.evicted} evicted, {half.used_mib:.0f} MiB used before, {half.end_mib:.0f} at the end, "
        f"{half.taken_mib:.0f} taken, {half.swapped_mib:.0f} in swap, {half.zram_mib:.1f} in zram{back}; "
        f"full stall {stalled} %; agent {half.agent:.2f}, its reclaimer {half.thread:.2f} % of a CPU"
    )


def _pair(nodes: dict[bool, IdleNode], grows_mib: int) -> dict[bool, Half]:
    for node in nodes.values():
        node.fill()
    _watch(nodes, _IDLE_S)
    for node in nodes.values():
        node.grow(grows_mib)
    _watch(nodes, grows_mib / RATE_MIB_S + _SETTLES_S)
    return {is_on: node.empty() for is_on, node in nodes.items()}


def _watch(nodes: dict[bool, IdleNode], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        time.sleep(min(_LOOK_S, until - now))
        for node in nodes.values():
            node.look()


def _yardstick_ms() -> float:
    text = bytes(range(256)) * 4096
    took = []
    for _ in range(5):
        began = time.perf_counter()
        zlib.compress(text)
        took.append((time.perf_counter() - began) * 1000)
    return min(took)


def _add(report: Report, off: list[Half], on: list[Half]) -> None:
    sizes = ", ".join(map(str, _GROWS_MIB))
    method = (
        f"pods idle with {IDLE_MIB} MiB anonymous and {CACHE_MIB} MiB page cache, a latency-sensitive one works on "
        f"{WORKS_MIB}; after {_IDLE_S:g} s one grows {RATE_MIB_S} MiB/s to {sizes} in turn; "
        f"node of {NODE_MIB}, threshold {NODE_MIB * THRESHOLD_PERCENT // 100} MiB; stepPercent {STEP_PERCENT}"
    )
    both = list(zip(off, on, strict=True))
    crossed = [(number, after) for number, (before, after) in enumerate(both) if before.evicted]
    avoided = [not after.evicted for _, after in crossed]
    row = at_least("evictions avoided, share of those without", "", statistics.fmean(avoided or [0]), 0.5, method)
    report.add(replace(row, n=len(crossed)))
    room = NODE_MIB * THRESHOLD_PERCENT / 100
    counted = [not after.evicted and after.end_mib + after.zram_mib < room for _, after in crossed]
    name = "… that would be avoided if the node counted zram"
    report.add(_once(name, "", statistics.fmean(counted or [0]), len(crossed)))
    for mib in _GROWS_MIB:
        of_it = [not after.evicted for number, after in crossed if _grows(number) == mib]
        if of_it:
            report.add(_once(f"… of a pod that grows to {mib} MiB", "", statistics.fmean(of_it), len(of_it)))
    for halves, what in ((off, "gate off"), (on, "gate on")):
        report.add(figure(f"pods evicted, {what}", "pods", [each.evicted for each in halves], "that were killed"))
        for pod, who in (("idle", "idle pod"), ("cache", "page cache's pod"), ("works", "latency-sensitive pod")):
            stalled = [each.stalled[pod] for each in halves]
            most = _MOST_STALLED_PERCENT if what == "gate on" else None
            row = at_most(f"full stall, {who}, {what}", "%", percentile(stalled, 0.5), most, "memory.pressure; median")
            report.add(replace(row, n=len(halves), p99=percentile(stalled, 0.99), worst=max(stalled)))
        report.add(figure(f"the agent, {what}", "%core", [each.agent for each in halves], "in all of that time"))
        if back := [each.back_ms for each in halves if each.back_ms is not None]:
            report.add(figure(f"idle pod uses all of its memory again, {what}", "ms", back, "once no other pod grows"))
    thread = [each.thread for each in on]
    row = at_most("the thread that reclaims", "%core", percentile(thread, 0.5), _MOST_CPU_PERCENT, "schedstat; median")
    report.add(replace(row, n=len(on), p99=percentile(thread, 0.99), worst=max(thread)))
    report.add(figure("taken from both idle pods", "MiB", [each.taken_mib for each in on], "memory.current"))
    if rates := [rate for each in on for rate in each.rates]:
        report.add(figure("taken while it trims", "MiB/s", rates, f"by interval of {REST_S:g} s with ≥ 1 MiB"))
    report.add(figure("of the idle pod in swap", "MiB", [each.swapped_mib for each in on], "memory.swap.current"))
    report.add(figure("zram holds for it", "MiB", [each.zram_mib for each in on], "mm_stat; of a node this counts"))


def _once(name: str, unit: str, value: float, n: int) -> Figure:
    return replace(at_most(name, unit, value, None, "the same"), n=n)
