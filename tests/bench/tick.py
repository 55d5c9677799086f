"""One tick under pressure, in this process: everything real, nothing is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.sinks import open_sinks
from koordebpf.agent.tick import Agent
from koordebpf.collect.cluster_view import ClusterView, frame_of, in_force
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import FEATURE_GATES, AgentConfig
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.host.protection import lock_memory
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.page import OwnUsage
from koordebpf.report.recent import Recent
from koordebpf.runner.context import Measuring
from koordebpf.state.build import view_of_frame
from koordebpf.state.stalls.sums import ScanSums
from koordebpf.state.view import NodeView
from koordebpf.store.open_plans import OpenPlans
from koordebpf.units import MIB, PAGE_BYTES
from tests.bench.contenders import THRESHOLD_PERCENT
from tests.bench.figure import figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import Report
from tests.support.loads.workloads import Hog


def tick(report: Report) -> None:
    """Tick above the threshold: every tick is a full round with a decision, by dry run."""
    n = 100 if report.quick else 1000
    with full_node() as node, TemporaryDirectory() as name:
        threshold = node.threshold_bytes(THRESHOLD_PERCENT)
        manifest = node.cgroup.write_manifest(Path(name) / "pods.json", THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        hog = Hog(node.hog, threshold // MIB + 128, hold_s=300)
        try:
            hog.wait_for("done")
            _measure(report, node, manifest, n)
        finally:
            hog.stop()


def _measure(report: Report, node: FullNode, manifest: Path, n: int) -> None:
    # Without a cool time a dry run decides again in each tick.
    config = AgentConfig(files=(manifest,), node_cgroup=node.cgroup.path, eviction=EvictSettings(cool_time_ns=0))
    scope = open_scope(find_memory_hierarchy(), config.node_cgroup)
    source = FileSource(config.files)
    with NodeWatch(scope, source, config.min_stall_ns) as watch:
        source.start(lambda: None)
        outcomes = OutcomeQueue(lambda: None)
        collector = MemoryCollector(scope, watch.signals, watch.index)
        executor = CgroupExecutor(lambda *_: None, outcomes)
        plans = OpenPlans("node", dry_run=True)
        sinks = open_sinks(plans, AgentMetrics(own=OwnUsage()), Health(), Recent(plans))
        measuring = Measuring.of(config, watch, collector)
        parts = AgentParts(measuring=measuring, executor=executor, outcomes=outcomes, sinks=sinks)
        agent = Agent(config, parts)
        agent.tick()
        raise_thread_priority()
        lock_memory()  # as the agent does: what is there is no longer looked at by the garbage collector
        method = "Agent.tick in this process, dry run, 110 pods / 330 containers, above the threshold"
        report.add(figure("one tick under pressure", "ms", _times(agent.tick, n), method, reach_p99=5))

        known = ClusterView()
        known.learn(source.state())
        measured = collector.everything({}, (), None)

        def sums() -> ScanSums:
            rows = watch.signals.scan()
            try:
                return ScanSums(bytes(rows), watch.index.subtree_pod, PAGE_BYTES)
            finally:
                rows.release()

        def scan() -> None:
            watch.signals.scan().release()

        def view() -> NodeView:
            made = frame_of(known.reported, measured, feature_gates=FEATURE_GATES, executor="cgroup")
            return view_of_frame(in_force(made, known), facts=known.facts)

        built = view()
        settings = EvictSettings(cool_time_ns=0)
        if not decide(built, settings).victims:
            raise RuntimeError("the node is above its threshold, and no pod is chosen")
        steps: dict[str, Callable[[], object]] = {
            "scan in the kernel": scan,
            "scan and sums": sums,
            "node": collector.node,
            "everything, with the scan": lambda: collector.everything({}, (), None),
            "view": view,
            "decision": lambda: decide(built, settings),
        }
        for step, call in steps.items():
            report.add(figure(f"  of it {step}", "ms", _times(call, n), "called by itself"))
        collector.close()
        executor.close()


def _times(call: Callable[[], object], n: int) -> list[float]:
    samples = []
    for _ in range(n):
        started_ns = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - started_ns) / 1e6)
    return samples
