"""What scheduler tracing takes of a node that does nothing but switch, and how soon it gives way beyond its budget."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from koordebpf.events.run_queue import check_layout
from koordebpf.kernel.bpf.sched_latency import SchedLatency
from koordebpf.kernel.cgroup.hierarchy import cgroup_id, find_controllers
from koordebpf.kernel.io.loop import Loop
from koordebpf.strategies.cpu_suppress.bursts import MAX_SHIFT
from koordebpf.strategies.cpu_suppress.sched_tracing import SchedTracing, WakeMetrics, open_latency
from koordebpf.strategies.cpu_suppress.values import WakeSettings
from koordebpf.units import NS_PER_MS
from tests.bench.figure import at_most, figure
from tests.bench.kernel_cost import median_interval
from tests.bench.report import CannotMeasure, Report
from tests.support.loads.ping_pong import PingPong, ping_pong

_SWITCHES_PER_S = 100_000
_RUN_MS = 250  # short: what the machine does beside it changes less from one run to the next
_GIVE_UP_S = 15.0


def sched_cost(report: Report) -> None:
    """Let pairs of processes wake each other, traced and not, in turns; then with the agent's own pace."""
    mount = find_controllers().get("cpu")
    if mount is None:
        raise CannotMeasure("no cpu controller is mounted")
    group = mount.mount_point / f"koord-sched-cost-{os.getpid()}"
    group.mkdir()
    cpus = sorted(os.sched_getaffinity(0))
    try:
        _paired(report, group, cpus)
        _at_its_pace(report, group, cpus)
        _beyond_the_budget(report, group, cpus)
    finally:
        time.sleep(0.1)  # a process is out of cgroup.procs before it is out of the cgroup
        group.rmdir()


@contextmanager
def _traced(group: Path, shift: int) -> Iterator[None]:
    settings = WakeSettings()
    with SchedLatency(settings.wait_ns, settings.burst_window_ns, check_layout) as latency:
        latency.keep_groups([cgroup_id(group)], [])
        latency.attach(shift)
        yield


def _paired(report: Report, group: Path, cpus: list[int]) -> None:
    pairs = 8 if report.quick else 60
    run = lambda: ping_pong(group / "cgroup.procs", cpus[:1], _RUN_MS).cpu_ns_per_message  # noqa: E731
    for shift, looked_at in ((0, "every wake-up looked at"), (MAX_SHIFT, f"one of {1 << MAX_SHIFT} looked at")):
        added_ns, without_ns = [], []
        for pair in range(pairs):
            # Each runs first in half of the pairs, so that a machine that gets faster or slower favours neither.
            before = None if pair % 2 else run()
            with _traced(group, shift):
                traced = run()
            without = before or run()
            without_ns.append(without)
            added_ns.append(traced - without)
        low, high = median_interval(added_ns)
        if shift == 0:
            report.add(
                figure("a switch with its wake-up, not traced", "ns", without_ns, "CPU time ÷ messages, one CPU")
            )
        share = median(added_ns) * _SWITCHES_PER_S / (len(cpus) * 1e9) * 100
        method = f"traced minus not, in pairs; 95 % of the median: {low:.0f} to {high:.0f} ns"
        report.add(figure(f"added to it, {looked_at}", "ns", added_ns, method))
        method = f"the median × {_SWITCHES_PER_S:,} switches a second ÷ {len(cpus)} CPUs"
        report.add(at_most(f"scheduler tracing at 100 k switches/s, {looked_at}", "%", share, None, method))


def median(samples: list[float]) -> float:
    """Return the middle one."""
    return sorted(samples)[len(samples) // 2]


@contextmanager
def _tracing(group: Path, metrics: WakeMetrics) -> Iterator[SchedTracing]:
    with Loop() as loop:
        tracing = SchedTracing(open_latency(WakeSettings()), WakeSettings(), loop, lambda _: None, metrics)
        try:
            tracing.follow([cgroup_id(group)], [])
            yield tracing
        finally:
            tracing.close()


def _look(tracing: SchedTracing, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        tracing.poll(time.monotonic_ns())
        time.sleep(0.005)


# As the agent has it: the pace follows what the programs time of themselves.
def _at_its_pace(report: Report, group: Path, cpus: list[int]) -> None:
    per_ms = _SWITCHES_PER_S // 1000 // len(cpus)
    seconds = 4 if report.quick else 12
    metrics, shares = WakeMetrics(), []
    with _tracing(group, metrics) as tracing, ThreadPoolExecutor() as pool:
        load = pool.submit(ping_pong, group / "cgroup.procs", cpus, (seconds + 4) * 1000, per_ms=per_ms)
        _look(tracing, 3)  # until it has found its pace
        for _ in range(seconds * 2):
            _look(tracing, 0.5)
            if metrics.cost_ratio is not None:
                shares.append(metrics.cost_ratio * 100)
        rate = _rate(load.result())
    sampled = metrics.sampled_ratio or 0.0
    end = f"one wake-up of {1 / sampled:.0f} looked at" if sampled else "it rested"
    method = f"as its programs time themselves, {rate:,.0f} switches/s; in the end {end}"
    report.add(figure("scheduler tracing on a busy node, at its own pace", "%", shares, method, reach_p99=1))


def _beyond_the_budget(report: Report, group: Path, cpus: list[int]) -> None:
    metrics = WakeMetrics()
    start_ns, highest = time.monotonic_ns(), 0.0
    with _tracing(group, metrics) as tracing, ThreadPoolExecutor() as pool:
        load = pool.submit(ping_pong, group / "cgroup.procs", cpus, int(_GIVE_UP_S / 2 * 1000))
        while metrics.sampled_ratio and time.monotonic_ns() - start_ns < _GIVE_UP_S / 2 * 1e9:
            _look(tracing, 0.01)
            highest = max(highest, (metrics.cost_ratio or 0.0) * 100)
        took_ms = (time.monotonic_ns() - start_ns) / NS_PER_MS
        rate = _rate(load.result())
    if metrics.sampled_ratio:
        report.cannot(f"scheduler tracing beyond its budget: it stayed in it at {rate:,.0f} switches/s")
        return
    method = f"all CPUs switch as fast as they can, {rate:,.0f}/s in all; the most that was counted: {highest:.1f} %"
    report.add(at_most("scheduler tracing beyond its budget, until it rests", "ms", took_ms, None, method))


def _rate(load: PingPong) -> float:
    return load.messages / (load.elapsed_ns / 1e9)
