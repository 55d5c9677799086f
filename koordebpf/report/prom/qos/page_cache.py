"""BEPageCacheSuppress as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.policy.page_cache.strategy import PageCacheDecision
from koordebpf.units import PAGE_BYTES


class PageCacheMetrics:
    """What was decided last, and how often limits failed. The loop writes, scrapes read."""

    def __init__(self) -> None:
        self._pods = 0
        self._bytes = 0
        self._per_s = 0.0
        self._failed = 0

    def take(self, made: PageCacheDecision) -> None:
        """Take over a decision."""
        self._pods, self._bytes, self._per_s = made.limited_pods, made.limited_bytes, made.refaults_per_s
        self._failed += made.failed

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        text = "Best-effort pods whose page cache is limited."
        yield GaugeMetricFamily("koordebpf_page_cache_limited_pods", text, self._pods)
        text = "Page cache that these pods may have."
        yield GaugeMetricFamily("koordebpf_page_cache_limit_bytes", text, self._bytes)
        text = "File pages that the worst latency-sensitive pod refaulted in a second, at the last look."
        yield GaugeMetricFamily("koordebpf_page_cache_refaults_per_second", text, self._per_s)
        text = "The same in bytes."
        yield GaugeMetricFamily("koordebpf_page_cache_refault_bytes_per_second", text, self._per_s * PAGE_BYTES)
        text = "Times that limits were lifted because refaults were no fewer with them."
        yield CounterMetricFamily("koordebpf_page_cache_failed_trials", text, self._failed)
