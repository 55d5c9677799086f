"""CPU burst as a latency-sensitive pod with a CPU limit feels it: beside a pod with the same work and no burst."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.units import MIB
from tests.bench.figure import at_most, figure, percentile
from tests.bench.report import CannotMeasure, Report
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.burst_pod_node import QUOTA, BurstPodNode
from tests.support.nodes import NodeCgroup

_LIMIT_US = 20_000  # 200m
_EVERY_S, _WORK_S = 0.3, 0.045  # three quarters of the limit on average, and more than twice the quota of a period
_PAIR_S = 8.0
_MOST_RATIO = 0.7  # 30 % better
_MEDIAN = "median, 99th percentile and worst of the pairs; the median counts"
# Each 0.3 s a request that takes 45 ms of CPU; prints when it came (CLOCK_MONOTONIC) and how long it took.
_SERVER = f"""
import time
due = time.monotonic()
while True:
    time.sleep(max(due - time.monotonic(), 0))
    until = time.process_time() + {_WORK_S}
    while time.process_time() < until:
        pass
    print(due, time.monotonic() - due, flush=True)
    due = max(due + {_EVERY_S}, time.monotonic())
"""


def burst_paired(report: Report) -> None:
    """Serve requests in two pods at the same time, one of which may burst; then count how soon it gets more."""
    pairs, steps = (3, 3) if report.quick else (20, int(os.environ.get("KOORDEBPF_STEPS", "20")))
    with _node() as node, TemporaryDirectory() as folder:
        weight = node.hierarchies.outweigh()
        arguments = node.arguments(Path(folder), sharePoolThresholdPercent=100)
        with LiveAgent(Path(folder), *arguments, "--enforce", keeps_frames=False) as agent:
            agent.becomes_ready()
            idle = 'koordebpf_cpu_burst_node{state="idle"}'
            until(lambda: agent.metric(idle) == 1, lambda: f"room on the node, but:\n{agent.log}")
            _served(report, node, Path(folder), pairs, weight)
            took = [_first_step_ms(node, Path(folder)) for _ in range(steps)]
            agent.stop()
    method = "from nr_throttled grown to cpu.cfs_quota_us grown, both read each 2 ms; from the limit itself"
    report.add(figure("throttled → larger quota", "ms", took, method))


@contextlib.contextmanager
def _node() -> Iterator[BurstPodNode]:
    hierarchy = find_memory_hierarchy()
    try:
        with (
            NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as cgroup,
            contextlib.closing(BurstPodNode(cgroup, _LIMIT_US, beside=True)) as node,
        ):
            yield node
    except (KeyError, OSError) as error:
        raise CannotMeasure(f"no cpu hierarchy that can be written: {error}") from None


def _served(report: Report, node: BurstPodNode, folder: Path, pairs: int, weight: str) -> None:
    places = {"burst": 0, "none": 2}  # of their containers
    for name, at in places.items():
        with (folder / name).open("wb") as out:
            node.start(node.containers[at], sys.executable, "-S", "-c", _SERVER, stdout=out, stderr=subprocess.STDOUT)
    p99: dict[str, list[float]] = {name: [] for name in places}
    throttled: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(pairs):
        since = time.monotonic()
        before = {name: node.throttled_ms(node.containers[at]) for name, at in places.items()}
        time.sleep(_PAIR_S)
        for name, at in places.items():
            p99[name].append(percentile(_latencies_ms(folder / name, since), 0.99))
            throttled[name].append(node.throttled_ms(node.containers[at]) - before[name])
        report.say(f"p99 {p99['none'][-1]:.0f} → {p99['burst'][-1]:.0f} ms")
    node.calm()
    method = f"{_PAIR_S:g} s of {_WORK_S * 1000:g} ms of CPU each {_EVERY_S:g} s, limit 200m; both at once; {weight}"
    for name, what in (("none", "without burst"), ("burst", "with burst")):
        report.add(figure(f"p99 of a pod's requests {what}", "ms", p99[name], method))
        report.add(figure(f"throttled {what}", "ms", throttled[name], "by cpu.stat, in the same time"))
    for what, found in (("p99", p99), ("throttled time", throttled)):
        ratios = [with_it / max(without, 1e-9) for with_it, without in zip(found["burst"], found["none"], strict=True)]
        row = at_most(f"{what} with burst, share of that without", "", percentile(ratios, 0.5), _MOST_RATIO, _MEDIAN)
        report.add(replace(row, n=len(ratios), p99=percentile(ratios, 0.99), worst=max(ratios)))


def _latencies_ms(file: Path, since: float) -> list[float]:
    rows = (line.split() for line in file.read_text().splitlines())
    return [float(took) * 1000 for due, took in rows if float(due) >= since]


# The pod works until it is throttled; the policy "none" before gives it its own quota again.
def _first_step_ms(node: BurstPodNode, folder: Path) -> float:
    first = node.containers[0]
    node.write(folder, sharePoolThresholdPercent=100, policy="none")
    until(lambda: node.value(first, QUOTA) == _LIMIT_US, "its own quota")
    node.write(folder, sharePoolThresholdPercent=100)
    time.sleep(2.5)
    before = node.throttled(first)
    node.burn()
    until(lambda: node.throttled(first) > before, "throttling")
    since = time.monotonic()
    until(lambda: node.value(first, QUOTA) != _LIMIT_US, "a larger quota")
    took = time.monotonic() - since
    node.calm()
    return took * 1000
