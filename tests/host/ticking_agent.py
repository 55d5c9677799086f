"""An agent in this process, whose ticks a test calls itself: a dry run with everything real around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.sinks import open_sinks
from koordebpf.agent.tick import Agent
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.page import OwnUsage
from koordebpf.report.recent import Recent
from koordebpf.runner.context import Measuring
from koordebpf.store.open_plans import OpenPlans


@contextmanager
def ticking_agent(
    hierarchy: MemoryHierarchy, node_cgroup: Path, manifest: Path, cool_time_ns: int = 0
) -> Iterator[Agent]:
    """Give the agent. Without a cool time it decides again in each tick above the threshold."""
    eviction = EvictSettings(cool_time_ns=cool_time_ns)
    config = AgentConfig(files=(manifest,), node_cgroup=node_cgroup, eviction=eviction)
    scope = open_scope(hierarchy, config.node_cgroup)
    with NodeWatch(scope, FileSource(config.files), config.min_stall_ns) as watch:
        watch.source.start(lambda: None)
        outcomes = OutcomeQueue(lambda: None)
        collector = MemoryCollector(scope, watch.signals, watch.index)
        plans = OpenPlans("node", dry_run=True)
        sinks = open_sinks(plans, AgentMetrics(own=OwnUsage()), Health(), Recent(plans))
        executor = CgroupExecutor(lambda *_: None, outcomes)
        try:
            measuring = Measuring.of(config, watch, collector)
            parts = AgentParts(measuring=measuring, executor=executor, outcomes=outcomes, sinks=sinks)
            yield Agent(config, parts)
        finally:
            collector.close()
            executor.close()
