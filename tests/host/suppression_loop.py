"""The steps of suppression in a row, for tests and benchmarks that want to stand between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.collect.cpu.collector import CpuCollector
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.series.store import node_series
from koordebpf.state.view import NodeView
from koordebpf.strategies.cpu_suppress.plan import SuppressPlan, plan_suppress
from koordebpf.strategies.cpu_suppress.values import SuppressSettings, SuppressState
from koordebpf.units import NS_PER_S
from tests.host.rigs.cgroups import CpuNode
from tests.support.patience import patience
from tests.support.values.builders import view_of_measured

BY_QUOTA = ResourceThresholdStrategy(enable=True, cpuSuppressThresholdPercent=65, cpuSuppressPolicy="cfsQuota")


class SuppressionLoop:
    """What the agent does each round: measure, decide, write, adopt."""

    def __init__(
        self,
        node: CpuNode,
        journal: Path,
        settings: SuppressSettings | None = None,
        *,
        writer: WriterSettings | None = None,
        window_ns: int = NS_PER_S // 2,
        burst_window_ns: int | None = None,
    ) -> None:
        self.node = node
        self.settings = settings or SuppressSettings()
        self.collector = CpuCollector(
            find_controllers(), node_path=node.name, window_ns=window_ns, burst_window_ns=burst_window_ns
        )
        self.collector.watch(node.owners())
        self.writer = CgroupWriter(node.places, Journal(journal), writer, enforce=True)
        self.state = SuppressState()
        self.changes: list[FileChange] = []
        self.each_pod = True
        self.series = node_series()

    def view(self, strategy: ResourceThresholdStrategy) -> NodeView:
        now_ns = time.monotonic_ns()
        measured = Measured(
            now_ns=now_ns,
            since_ns=now_ns,
            node=NodeMeasure("cgroup", 1, 0),
            cpu=self.collector.collect(now_ns, self.series, each_pod=self.each_pod),
        )
        return view_of_measured(measured, strategy=strategy)

    def round(self, strategy: ResourceThresholdStrategy) -> SuppressPlan:
        plan = plan_suppress(self.view(strategy), self.state, self.settings)
        report = self.writer.apply(plan.desired, time.monotonic_ns())
        self.changes += report.changes
        self.state = plan.next
        return plan

    def until(self, strategy: ResourceThresholdStrategy, reached: Callable[[SuppressPlan], bool]) -> SuppressPlan:
        deadline = time.monotonic() + patience(60)
        while True:
            plan = self.round(strategy)
            if reached(plan):
                return plan
            assert time.monotonic() < deadline, plan.reason
            time.sleep(0.05)

    def close(self) -> None:
        self.writer.restore(time.monotonic_ns())
        self.collector.close()
