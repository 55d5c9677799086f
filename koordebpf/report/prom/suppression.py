"""Suppression of best-effort CPU as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.report.prom.wake import WakeMetrics


class SuppressionMetrics:
    """What suppression shows of itself. The loop replaces the values, scrapes read them."""

    def __init__(self) -> None:
        self.held_millicpu: int | None = None  # None: nothing holds them
        self.policy: str | None = None  # by what it is held: cpuset or cfsQuota
        self.wake = WakeMetrics()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        cores = GaugeMetricFamily(
            "koordebpf_be_cpu_cores", "CPU that best-effort pods may use, where they are held; in a dry run, would be."
        )
        if self.held_millicpu is not None:
            cores.add_metric([], self.held_millicpu / 1000)
        yield cores
        yield from self.wake.families()
