"""Block IO in a running agent: measures for it, and reports what of its input cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.view import NodeView
from koordebpf.strategies.block_io.decide import BLOCK_IO, BlockIODecision, BlockWrite
from koordebpf.strategies.block_io.measure import BlockIOCollector
from koordebpf.strategies.block_io.values import BlockIOMeasured, block_io_view

log = logging.getLogger(__name__)


class BlockIOMetrics:
    """What block IO shows of itself; its writes count in `koordebpf_file_writes`."""

    def __init__(self) -> None:
        self._cgroups = 0

    def take(self, made: BlockIODecision) -> None:
        """Take over what was decided when it was due last."""
        self._cgroups = len({each.path for each in made.writes})

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        text = "Cgroups that have limits of block devices; in a dry run, would have."
        yield GaugeMetricFamily("koordebpf_block_io_cgroups", text, self._cgroups)


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


def open_runner(node: NodeContext) -> BlockIORunner | None:
    """Return it; None: the node has no controller blkio or io, which is logged."""
    mounts = find_controllers()
    mount = mounts.get("blkio") or mounts.get("io")
    if mount is None:
        log.warning("feature gate %s: this node has no controller blkio or io: no device is limited", BLOCK_IO.gate)
        return None
    settings, watch = node.settings_of(BLOCK_IO), node.measuring.watch
    collector = BlockIOCollector(watch.index, node.measuring.known, mount, settings.kubelet_dir)
    collector.due = node.due(collector.period_ns)
    return BlockIORunner(collector, BlockIOMetrics())
