"""Ticks of an agent under pressure, each with a decision, into a recording."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.sinks import open_sinks
from koordebpf.agent.tick import Agent
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.runner.context import Measuring
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.recorder.recorder import Recorder
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.stores import FileStore
from koordebpf.units import GIB, MIB
from tests.bench.contenders import THRESHOLD_PERCENT
from tests.bench.nodes import full_node
from tests.support.loads.workloads import Hog


def ticks_under_pressure(path: Path, many: int) -> None:
    """Tick so often above the threshold, by dry run, and record each round into a new file."""
    with full_node() as node, TemporaryDirectory() as name:
        threshold = node.threshold_bytes(THRESHOLD_PERCENT)
        manifest = node.cgroup.write_manifest(Path(name) / "pods.json", THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        hog = Hog(node.hog, threshold // MIB + 128, hold_s=600)
        # Without a cool time a dry run decides again in each tick.
        config = AgentConfig(files=(manifest,), node_cgroup=node.cgroup.path, eviction=EvictSettings(cool_time_ns=0))
        try:
            hog.wait_for("done")
            with NodeWatch(
                open_scope(find_memory_hierarchy(), config.node_cgroup), FileSource(config.files), config.min_stall_ns
            ) as watch:
                _tick(config, watch, Recorder(FileStore(path, Run("0123abcd", "bench"), GIB)), many)
        finally:
            hog.stop()


def _tick(config: AgentConfig, watch: NodeWatch, recorder: Recorder, many: int) -> None:
    assert watch.source is not None
    watch.source.start(lambda: None)
    outcomes = OutcomeQueue(lambda: None)
    collector = MemoryCollector(watch.scope, watch.signals, watch.index)
    executor = CgroupExecutor(lambda *_: None, outcomes)
    plans = OpenPlans("node", dry_run=True)
    sinks = open_sinks(plans, AgentMetrics(), Health(), Recent(plans), recorder=recorder)
    parts = AgentParts(
        measuring=Measuring.of(config, watch, collector), executor=executor, outcomes=outcomes, sinks=sinks
    )
    agent = Agent(config, parts)
    for number in range(many):
        agent.tick()
        while recorder.counts.rounds + recorder.counts.lost_rounds < number - 8:
            time.sleep(0.0005)
    recorder.close()
    collector.close()
    executor.close()
