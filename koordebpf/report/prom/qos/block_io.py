"""Block IO as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.policy.block_io.strategy import BlockIODecision


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
