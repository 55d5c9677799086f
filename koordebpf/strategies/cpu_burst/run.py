"""CPU burst in a running agent: measures for it, and asks for a round as soon as a container is throttled."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.view import NodeView
from koordebpf.strategies.cpu_burst.decide import CPU_BURST, BurstDecision
from koordebpf.strategies.cpu_burst.measure import BurstCollector, ThrottleWatch
from koordebpf.strategies.cpu_burst.values import BurstMeasured

_NODE_STATES = ("idle", "cooling", "overload", "unknown")
log = logging.getLogger(__name__)


class CpuBurstMetrics:
    """The loop takes decisions, scrapes read the last one."""

    def __init__(self) -> None:
        self.decision: BurstDecision | None = None  # None: not decided yet
        self.wakes = 0  # rounds that began because a container was throttled

    def families(self) -> Iterator[Metric]:
        """Yield the metrics; of containers only once something was decided."""
        yield CounterMetricFamily("koordebpf_cpu_burst_wakes", "Rounds that a throttled container began.", self.wakes)
        if (decision := self.decision) is None:
            return
        containers = GaugeMetricFamily(
            "koordebpf_cpu_burst_containers",
            "Containers above their CPU limit, those of them that get no more, and those left to another process.",
            labels=["state"],
        )
        for state in ("raised", "at_ceiling", "left"):
            containers.add_metric([state], getattr(decision, state))
        yield containers
        node = GaugeMetricFamily(
            "koordebpf_cpu_burst_node", "State of the CPUs that pods share; 1: it is this one.", labels=["state"]
        )
        for state in _NODE_STATES:
            node.add_metric([state], decision.node == state)
        yield node


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

    def poll_due(self, now_ns: int) -> bool:
        """Tell whether a container was throttled."""
        is_due = self._watch.poll()
        self._collector.is_throttled |= is_due
        self._metrics.wakes += is_due
        return is_due

    def act(self, made: BurstDecision, view: NodeView) -> Iterable[str]:
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


def open_runner(node: NodeContext) -> CpuBurstRunner:
    """Return it.

    Raises:  SupportError: no sysfs or procfs.
    """
    watch, mounts = node.measuring.watch, find_controllers()
    throttling = ThrottleWatch(mounts, node.loop.wake)
    collector = BurstCollector(watch.index, node.measuring.known, mounts, watch.scope.node_path)
    runner = CpuBurstRunner(collector, throttling, CpuBurstMetrics())
    node.stack.callback(runner.close)
    if not node.is_one_frame:
        throttling.start()
    return runner
