"""Block IO in the agent: measures for it, and reports what of its input cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from koordebpf.decision.strategies import settings_of
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.block_io.strategy import BLOCK_IO, BlockIODecision
from koordebpf.policy.block_io.writes import BlockWrite
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.block_io.measured import BlockIOMeasured
from koordebpf.state.block_io.view import block_io_view
from koordebpf.state.view import NodeView

if TYPE_CHECKING:
    from koordebpf.collect.block_io.collector import BlockIOCollector
    from koordebpf.report.prom.qos.block_io import BlockIOMetrics
    from koordebpf.runner.context import NodeContext

log = logging.getLogger(__name__)


class BlockIORunner(StrategyRunner[BlockIOMeasured, BlockIODecision]):
    """Asks the collector, and reports how much is limited."""

    def __init__(self, collector: BlockIOCollector, metrics: BlockIOMetrics) -> None:
        super().__init__("block IO", BLOCK_IO, BlockIODecision, collector.measure)
        self._metrics = metrics
        self._said = ""

    def take(self, made: BlockIODecision, view: NodeView) -> Iterable[str]:
        """Report how much is limited where that has changed."""
        if made.reason != self._said:
            log.info("%s", made.reason)
        self._said = made.reason
        self._metrics.take(made)
        return made.problems

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self._metrics.families()

    def lines(self, measured: BlockIOMeasured, made: BlockIODecision, view: NodeView) -> Mapping[str, PodLines]:
        """Return the limits of each pod's directories."""
        found = {}
        for pod in block_io_view(measured, view.facts).pods:
            own = (each for each in made.sources if f"{each.write.path}/".startswith(f"{pod.path}/"))
            found[pod.uid] = PodLines(pod.path, tuple(_line(each) for each in own))
        return found


def _line(limit: BlockWrite) -> PodSetting:
    write = limit.write
    return PodSetting(write.path, write.file.value, BLOCK_IO.gate, limit.source, str(write.value))


def open_block_io(node: NodeContext) -> BlockIORunner | None:
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
    return BlockIORunner(collector, BlockIOMetrics())
