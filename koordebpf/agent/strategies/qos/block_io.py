"""Block IO in the agent: measures for it, and reports what of its input cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from koordebpf.agent.strategies.measurements import Measurements
from koordebpf.agent.strategies.part import StrategyPart
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.block_io.strategy import BLOCK_IO, BlockIODecision
from koordebpf.policy.strategies import settings_of
from koordebpf.state.measured import Measured

if TYPE_CHECKING:
    from koordebpf.agent.context import NodeContext
    from koordebpf.collect.block_io.collector import BlockIOCollector
    from koordebpf.report.prom.qos.block_io import BlockIOMetrics

log = logging.getLogger(__name__)


class BlockIOPart(StrategyPart[BlockIODecision]):
    """Asks the collector, and reports, also by a metric. `OwnStrategies` writes."""

    def __init__(self, collector: BlockIOCollector, metrics: BlockIOMetrics) -> None:
        super().__init__("block IO", BLOCK_IO, BlockIODecision)
        self._measurements = Measurements("block IO was", collector.measure)
        self._metrics = metrics
        self._said = ""

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `RoundPart.measure`."""
        found = self._measurements.take(measured.now_ns, is_sample=is_sample)
        return measured.with_part(BLOCK_IO.part, found)

    def take(self, made: BlockIODecision, now_ns: int) -> Iterable[str]:
        """Report how much is limited where that has changed."""
        if made.reason != self._said:
            log.info("%s", made.reason)
        self._said = made.reason
        self._metrics.take(made)
        return made.problems


def open_block_io(node: NodeContext) -> BlockIOPart | None:
    """Return it; None: its feature gate is off, or the node has no controller blkio or io, which is logged."""
    if not node.config.feature_gates.get(BLOCK_IO.gate):
        return None
    mounts = find_controllers()
    mount = mounts.get("blkio") or mounts.get("io")
    if mount is None:
        log.warning("feature gate %s: this node has no controller blkio or io: no device is limited", BLOCK_IO.gate)
        return None
    from koordebpf.collect.block_io.collector import BlockIOCollector
    from koordebpf.report.prom.qos.block_io import BlockIOMetrics

    settings, watch = settings_of(BLOCK_IO, node.config), node.measuring.watch
    collector = BlockIOCollector(watch.index, node.measuring.known, mount, settings.kubelet_dir)
    collector.due = node.due(collector.period_ns)
    metrics = BlockIOMetrics()
    node.metrics.node.qos.append(metrics)
    return BlockIOPart(collector, metrics)
