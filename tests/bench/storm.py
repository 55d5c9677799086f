"""The agent while reclaim is at its worst: as many episodes as the CPUs can be made to do."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from koordebpf.events.layout import decode_stall, decode_totals
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.units import NS_PER_S
from tests.bench.figure import at_most
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import cpu_s, rollup_mib
from tests.host.live_agent import LiveAgent
from tests.support.bpf_ids import OtherMap
from tests.support.loads.storms import Storm, can_count
from tests.support.nodes import MIB, NodeCgroup
from tests.support.tracefs import NO_TRACEFS

_MAX_CPU_PERCENT = 5
_MAX_RSS_MIB = 60
_TICKS = "koordebpf_ticks_total"
_START_S = 20  # that so many processes need on busy CPUs


def storm(report: Report) -> None:
    """Let one task for each CPU reclaim without end, then many: they are preempted within, so their stalls are long."""
    if not can_count():
        raise CannotMeasure(NO_TRACEFS)
    seconds = 5 if report.quick else 30
    hierarchy = find_memory_hierarchy()
    cpus = os.cpu_count() or 1
    for tasks in (cpus, 32 * cpus):
        with NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as node:
            _measure(report, node, tasks, seconds)


def _measure(report: Report, node: NodeCgroup, tasks: int, seconds: int) -> None:
    containers = [node.add_pod(f"storm-{n}")[0] for n in range(tasks)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        manifest = node.write_manifest(folder / "pods.json")
        agent = stack.enter_context(
            LiveAgent(folder, "--pods", manifest, "--node-cgroup", node.path, keeps_frames=False)
        )
        agent.becomes_ready()
        pid = agent.process.pid
        totals, stalls = OtherMap(pid, "totals"), OtherMap(pid, "stalls")
        stack.callback(totals.close)
        stack.callback(stalls.close)
        before = decode_totals(totals.first())
        ticks, cpu, started_s = agent.metric(_TICKS), cpu_s(pid), time.monotonic()
        storms = [Storm(container, seconds * 1000) for container in containers]
        for each in storms:
            stack.callback(each.stop)
        results = [each.result(seconds + _START_S) for each in storms]
        elapsed, cpu, ticks = time.monotonic() - started_s, cpu_s(pid) - cpu, agent.metric(_TICKS) - ticks
        after = decode_totals(totals.first())
        rows = [decode_stall(*item) for item in stalls.items()]
        resident = rollup_mib(pid)["Rss"]
    counted = {row.cgroup_id: row.limit.count + row.global_.count for row in rows}
    missed = sum(abs(each.episodes - counted.get(each.cgroup_id, 0)) for each in results)
    span_ns = max(each.done_ns for each in results) - min(each.ready_ns for each in results)
    rate = sum(each.episodes for each in results) / span_ns * NS_PER_S
    sent, lost = after.ring_sent - before.ring_sent, after.ring_lost - before.ring_lost
    name = f"storm of {tasks} tasks"
    for what, unit, value, reach, method in (
        (
            "reclaim episodes",
            "/s",
            rate,
            None,
            f"huge pages that do not fit, for {seconds} s, each task in a cgroup of its own",
        ),
        ("of them not counted", "", missed, 0, "the map `stalls` beside a perf counter in each task"),
        ("the agent's CPU", "%core", cpu / elapsed * 100, _MAX_CPU_PERCENT, "utime + stime of all threads"),
        ("the agent's memory", "MiB", resident, _MAX_RSS_MIB, "smaps_rollup at the end"),
        ("the agent's ticks", "/s", ticks / elapsed, None, _TICKS),
        ("records of stalls from 1 ms on", "/s", (sent + lost) / elapsed, None, "koord_totals.ring_sent + ring_lost"),
        ("of them lost", "/s", lost / elapsed, None, "koord_totals.ring_lost"),
    ):
        report.add(at_most(f"{name}: {what}", unit, value, reach, method))
