"""CPU burst in the agent: measures for it, and asks for a round as soon as a container is throttled."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.cpu_burst.strategy import CPU_BURST, BurstDecision
from koordebpf.report.prom.qos.cpu_burst import CpuBurstMetrics
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.cpu_burst.measured import BurstMeasured
from koordebpf.state.view import NodeView

if TYPE_CHECKING:
    from koordebpf.collect.cpu_burst.collector import BurstCollector
    from koordebpf.collect.cpu_burst.throttling import ThrottleWatch
    from koordebpf.runner.context import NodeContext

log = logging.getLogger(__name__)


class CpuBurstRunner(StrategyRunner[BurstMeasured, BurstDecision]):
    """Asks the collector, and lets the watch look at those containers whose quota would be raised.

    Args:
        collector: of what is decided from.
        watch: of throttled containers.
        metrics: get each decision.
    """

    def __init__(self, collector: BurstCollector, watch: ThrottleWatch, metrics: CpuBurstMetrics) -> None:
        super().__init__("CPU burst", CPU_BURST, BurstDecision, collector.measure)
        self._collector = collector
        self._watch = watch
        self._metrics = metrics

    def take_due(self, now_ns: int) -> bool:
        """Tell whether a container was throttled."""
        is_due = self._watch.take()
        self._collector.is_throttled |= is_due
        self._metrics.wakes += is_due
        return is_due

    def take(self, made: BurstDecision, view: NodeView) -> Iterable[str]:
        """Take over who is to be looked at."""
        self._watch.watched = made.watched
        self._collector.active = {each.path for each in made.writes if each.file is CgroupFile.CPU_QUOTA}
        self._metrics.decision = made
        return made.problems

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self._metrics.families()

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
        self._collector.close()


def open_cpu_burst(node: NodeContext) -> CpuBurstRunner | None:
    """Return it; None: its feature gate is off.

    Raises:  SupportError: no sysfs or procfs.
    """
    if not node.config.feature_gates.get(CPU_BURST.gate):
        return None
    from koordebpf.collect.cpu_burst.collector import BurstCollector
    from koordebpf.collect.cpu_burst.throttling import ThrottleWatch

    watch, mounts = node.measuring.watch, find_controllers()
    throttling = ThrottleWatch(mounts, node.loop.wake)
    collector = BurstCollector(watch.index, node.measuring.known, mounts, watch.scope.node_path)
    runner = CpuBurstRunner(collector, throttling, CpuBurstMetrics())
    node.stack.callback(runner.close)
    if not node.is_one_frame:
        throttling.start()
    return runner
