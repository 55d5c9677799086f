"""What usage of pods and containers costs: a pass, a whole round, and an agent with it and without it in turn."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.jobs.usage_series.collector import UsageCollector
from koordebpf.jobs.usage_series.cpu import FileCpu, ScannedCpu
from koordebpf.kube.sources.file import FileSource
from koordebpf.state.series.store import node_series
from koordebpf.units import NS_PER_S
from tests.bench.figure import at_most, figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import Report
from tests.bench.steady import cpu_s, rollup_mib, syscalls_per_s
from tests.bench.timing import times_ms
from tests.host.rigs.usage_node import UsageNode
from tests.support.agent_process import AgentProcess

_SIZES = ((110, 330), (500, 1000))
_GATE = ("--feature-gates", "UsageSeries=true")
_WARM_S = 12  # until every cgroup has a row
_TURNS = 3


def usage(report: Report) -> None:
    """Measure nodes of two sizes."""
    for pods, containers in _SIZES:
        size = f"{pods} pods / {containers} containers"
        with full_node(pods, containers) as node, UsageNode(node.cgroup) as its, tempfile.TemporaryDirectory() as name:
            manifest = node.cgroup.write_manifest(Path(name) / "pods.json", 70, 65)
            report.say(size)
            _in_process(report, its, manifest, size)
            _in_turn(report, node, manifest, size)


def _in_process(report: Report, node: UsageNode, manifest: Path, size: str) -> None:
    n = 50 if report.quick else 300
    scope = open_scope(node.hierarchy, node.node.path)
    source = FileSource((manifest,))
    source.start(lambda: None)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(NodeWatch(scope, source, 0))
        watch.cluster()
        memory = MemoryCollector(scope, watch.signals, watch.index)
        stack.callback(memory.close)
        memory.everything({}, (), None)
        collector = UsageCollector(scope, watch.index, memory, node.mounts, dict)
        stack.callback(collector.close)
        series, now_ns = node_series(), time.monotonic_ns()

        def whole() -> None:
            nonlocal now_ns
            now_ns += NS_PER_S
            collector.collect(now_ns, series)

        for _ in range(40):  # until all cgroups have a row
            whole()
        counters = collector.counters
        if isinstance(counters, ScannedCpu):
            report.add(figure(f"CPU pass, {size}", "ms", times_ms(counters.read, n), "rows to numbers", reach_p50=1))
        else:
            report.cannot(f"CPU pass: {counters.how}")
        files = FileCpu(node.mounts, "a comparison")
        stack.callback(files.close)
        files.watch(collector.groups.by_id)
        report.add(figure(f"128 of them by files, {size}", "ms", times_ms(files.read, n), "usage and cpu.stat"))
        report.add(figure(f"usage, whole round, {size}", "ms", times_ms(whole, n), "without the memory scan"))


def _in_turn(report: Report, node: FullNode, manifest: Path, size: str) -> None:
    seconds = 10 if report.quick else 60
    costs: dict[bool, list[float]] = {False: [], True: []}
    memory: dict[bool, float] = {}
    calls: dict[bool, float | None] = {}
    for _ in range(1 if report.quick else _TURNS):
        for is_on in (False, True):
            with AgentProcess(node.cgroup, manifest, *(_GATE if is_on else ())) as agent:
                time.sleep(_WARM_S)
                cpu, started_s = cpu_s(agent.pid), time.monotonic()
                time.sleep(seconds)
                costs[is_on].append((cpu_s(agent.pid) - cpu) / (time.monotonic() - started_s) * 100)
                memory[is_on] = rollup_mib(agent.pid)["Rss"]
                calls[is_on] = syscalls_per_s(agent.pid)
    added = sum(costs[True]) / len(costs[True]) - sum(costs[False]) / len(costs[False])
    method = f"{len(costs[True])} × {seconds} s with and without, in turn"
    reach = 0.15 if size.startswith("110 ") else None
    report.add(at_most(f"usage adds, {size}", "%core", added, reach, method))
    report.add(at_most(f"usage adds to RSS, {size}", "MiB", memory[True] - memory[False], None, "smaps_rollup"))
    on, off = calls[True], calls[False]
    if on is None or off is None:
        report.cannot("syscalls a second: perf stat does not work here")
    else:
        report.add(at_most(f"usage adds to syscalls, {size}", "/s", on - off, None, "perf stat"))
