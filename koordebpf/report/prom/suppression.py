"""Suppression of best-effort CPU as metrics, and what was written to files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.report.prom.wake import WakeMetrics


class SuppressionMetrics:
    """What suppression shows of itself. The loop replaces the values, scrapes read them."""

    def __init__(self) -> None:
        self.held_millicpu: int | None = None  # None: nothing holds them
        self.policy: str | None = None  # by what it is held: cpuset or cfsQuota
        self.wake = WakeMetrics()
        self.writes: Mapping[tuple[str, str], int] = {}  # file and result → attempts
        self.ladder_writes: Mapping[tuple[str, str], int] = {}  # the same of the eviction ladder
        self.strategy_writes: Mapping[tuple[str, str], int] = {}  # the same of other strategies

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        cores = GaugeMetricFamily(
            "koordebpf_be_cpu_cores", "CPU that best-effort pods may use, where they are held; in a dry run, would be."
        )
        if self.held_millicpu is not None:
            cores.add_metric([], self.held_millicpu / 1000)
        yield cores
        by_owner = (self.writes, self.ladder_writes, self.strategy_writes)
        writes = CounterMetricFamily(
            "koordebpf_file_writes", "Cgroup and sysctl writes by file and outcome.", labels=["file", "result"]
        )
        for labels, count in sum(map(Counter, by_owner), Counter[tuple[str, str]]()).items():
            writes.add_metric(labels, count)
        yield writes
        yield from self.wake.families()
