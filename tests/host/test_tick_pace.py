"""When the agent looks again: near the threshold soon, and never later than its round of each second."""

from __future__ import annotations

import time
from pathlib import Path

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.act.guards.rules import GuardLimits
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.agent.reporter import Reporter
from koordebpf.agent.tick import Agent
from koordebpf.collect.memory import Collector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.proc.self_usage import SelfUsageReader
from koordebpf.kube.sources.file import FileSource
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.units import GIB, NS_PER_S
from tests.support.nodes import NodeCgroup


def test_a_look_between_two_rounds_puts_the_next_round_off_no_further(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path
) -> None:
    # GIVEN a node that is so far from its threshold that a look each second will do
    with NodeCgroup(memory_cgroup, hierarchy.version, 4096 * GIB) as node:
        config = AgentConfig(files=(node.write_manifest(tmp_path / "pods.json"),), node_cgroup=node.path)
        scope = open_scope(hierarchy, config.node_cgroup)
        with NodeWatch(scope, FileSource(config.files), config.min_stall_ns) as watch:
            watch.source.start(lambda: None)
            outcomes = OutcomeQueue(lambda: None)
            collector = Collector(scope, watch.signals, watch.index)
            reporter = Reporter(
                node="node",
                dry_run=True,
                trail=AuditTrail(None, None),
                events=None,
                metrics=AgentMetrics(SelfUsageReader().read),
                health=Health(),
            )
            executor = CgroupExecutor(lambda *_: None, outcomes)
            agent = Agent(config, watch, collector, executor, outcomes, reporter, GuardLimits(), None)
            try:
                agent.tick()
                round_ns = time.monotonic_ns()
                # WHEN something wakes it in between THEN the next round is due a second after the last one
                assert agent.tick() <= round_ns + NS_PER_S
            finally:
                collector.close()
