"""Memory QoS in the agent: measures for it, and reports what of its input cannot be used.

What it wants of cgroup files is written as any other strategy's is, by `OwnStrategies`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from koordebpf.agent.strategies.measurements import Measurements
from koordebpf.agent.strategies.part import StrategyPart
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.memory_qos.strategy import MEMORY_QOS, MemoryQosDecision
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.measured import Measured

if TYPE_CHECKING:
    from koordebpf.agent.context import NodeContext
    from koordebpf.collect.memory.qos_directories import MemoryQosCollector

log = logging.getLogger(__name__)


class MemoryQosPart(StrategyPart[MemoryQosDecision]):
    """Asks the collector, logs problems once, and shows what is protected."""

    def __init__(self, collector: MemoryQosCollector, metrics: AgentMetrics) -> None:
        super().__init__("memory QoS", MEMORY_QOS, MemoryQosDecision)
        self._measurements = Measurements("memory QoS was", collector.measure)
        self._metrics = metrics

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `RoundPart.measure`."""
        found = self._measurements.take(measured.now_ns, is_sample=is_sample)
        return measured.with_part(MEMORY_QOS.part, found)

    def take(self, made: MemoryQosDecision, now_ns: int) -> Iterable[str]:
        """Report what is protected."""
        self._metrics.node.protected_bytes = made.protected_bytes
        return made.problems


def open_memory_qos(node: NodeContext) -> MemoryQosPart | None:
    """Return it; None: its gate is off, or there is no memory controller.

    Where files may hold what an agent before this one wrote all pods are looked at at once.

    Raises:  SupportError: no sysfs.
    """
    if not node.config.feature_gates.get(MEMORY_QOS.gate):
        return None
    memory = find_controllers().get("memory")
    if memory is None:
        log.warning("memory QoS has no effect: this host has no memory controller")
        return None
    from koordebpf.collect.hooks.collector import HookCollector
    from koordebpf.collect.memory.qos_directories import MemoryQosCollector

    watch = node.measuring.watch
    directories = HookCollector(watch.index, node.measuring.known, memory, watch.scope.node_path)
    directories.due = node.due(directories.period_ns)
    directories.admits_all = node.writer.is_journalled or node.is_one_frame
    collector = MemoryQosCollector(directories, memory, watch.scope.node_path)
    node.stack.callback(collector.close)
    return MemoryQosPart(collector, node.metrics)
