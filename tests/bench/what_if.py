"""Simulations held against recordings in which the setting really was another one, and what shadow mode costs.

Each pair is the same jobs twice, at the same time in two node cgroups: their agents differ in the threshold alone. The
jobs are processes that eat memory; they come, grow and end by a plan that is made with a seed, whatever is evicted.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from koordebpf.decision.what_if.shadow import EVERY_NS, Shadows
from koordebpf.decision.what_if.variant import Variant
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.tools.what_if.simulate import Validation, recordings_of, validated
from koordebpf.units import MIB, NS_PER_S
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Hog, Holder
from tests.support.nodes import NodeCgroup
from tests.support.values.played_node import SYSTEM_MIB, WEB_MIB, Job, jobs_of

_NODE_MIB = 1000
_SETTINGS = ((85, 75), (70, 60))  # threshold and lower mark of each of a pair
_SEEDS = (1, 3, 4)
_LOOK_S = 0.2


def what_if(report: Report) -> None:
    """Record pairs, simulate each one of a pair under the other one's settings; then measure shadow mode."""
    seconds = 40 if report.quick else 120
    with tempfile.TemporaryDirectory() as folder:
        for seed in _SEEDS[: 1 if report.quick else None]:
            first, second = record_pair(Path(folder) / str(seed), seed, seconds)
            for one, other in ((first, second), (second, first)):
                found = validated(recordings_of(str(one))[0], recordings_of(str(other))[0])
                report.say(f"seed {seed}, {one.name} as {other.name}: {_said(found)}")
                off = found.figures[0].off_percent
                report.add(figure(f"evictions of {one.name} as {other.name}, off by", "%", [off or 0.0], _said(found)))
    shadow_cost(report)


def record_pair(folder: Path, seed: int, seconds: int) -> tuple[Path, Path]:
    """Record the same jobs under both settings; return the recordings."""
    found = []
    threads = []
    for threshold, lower in _SETTINGS:
        place = folder / f"at-{threshold}"
        place.mkdir(parents=True)
        found.append(place / "recorded")
        threads.append(threading.Thread(target=_play, args=(place, jobs_of(seed, seconds), seconds, threshold, lower)))
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    first, second = found
    return first, second


def _play(folder: Path, jobs: list[Job], seconds: int, threshold: int, lower: int) -> None:
    hierarchy = find_memory_hierarchy()
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, _NODE_MIB * MIB) as node:
        loads = [Holder(node.add_pod(name, be=False)[0], "anon", mib) for name, mib in _SERVICES]
        manifest = node.write_manifest(folder / "pods.json", threshold, lower)
        arguments = ("--pods", manifest, "--node-cgroup", node.path, "--enforce", "--executor", "cgroup")
        try:
            with LiveAgent(folder, *arguments).started() as agent:
                _run(node, jobs, seconds, lambda: node.write_manifest(manifest, threshold, lower))
                agent.stop()
                shutil.copytree(agent.recorded / "recorder" / node.path.name, folder / "recorded")
        finally:
            for each in loads:
                each.stop()


_SERVICES = (("system", SYSTEM_MIB), ("web", WEB_MIB))


# As a kubelet: a pod's cgroup comes with it, and is removed when its process has ended, by itself or killed.
def _run(node: NodeCgroup, jobs: list[Job], seconds: int, publish: Callable[[], object]) -> None:
    running: dict[str, tuple[Job, Hog]] = {}
    waiting = sorted(jobs, key=lambda job: job.start)
    started = time.monotonic()
    while (second := time.monotonic() - started) < seconds:
        changed = False
        while waiting and waiting[0].start <= second:
            job = waiting.pop(0)
            (container,) = node.add_pod(job.name)
            running[job.name] = job, Hog(container, job.mib, rate_mib_s=job.rate, hold_s=600)
            changed = True
        for name, (job, hog) in tuple(running.items()):
            if second >= job.end or hog.process.poll() is not None:
                hog.stop()
                del running[name]
                node.remove_pod(name)
                changed = True
        if changed:
            publish()
        time.sleep(_LOOK_S)
    for _, hog in running.values():
        hog.stop()


def _said(found: Validation) -> str:
    return ", ".join(f"{each.figure} {each.simulated:.4g} for {each.happened:.4g}" for each in found.figures)


def shadow_cost(report: Report) -> None:
    """Measure one look at configurations with 110 pods, quiet and with pods taken out."""
    from tests.support.values.rounds import round_ended

    for pods_out, fields in (("as the node is", {}), ("apart from it", {"memoryEvictThresholdPercent": 40})):
        for count in (0, 1, 4):
            shadows = Shadows([Variant(f"c{number}", fields) for number in range(count)], 100 * MIB)
            samples = []
            for second in range(300):
                event = round_ended(float(second), pods=110, used_mib=500, seed=second)
                started = time.perf_counter_ns()
                shadows.observe(event.tick, event.view, event.decision)
                samples.append((time.perf_counter_ns() - started) / 1000)
            name = f"a look at {count} configurations, 110 pods, {pods_out}"
            report.add(figure(name, "µs", samples[10:], f"at most each {EVERY_NS / NS_PER_S:.1f} s"))
            report.say(f"  median {statistics.median(samples):.0f} µs")
