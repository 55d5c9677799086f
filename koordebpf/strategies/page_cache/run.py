"""BEPageCacheSuppress in a running agent."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.policy.strategy import Decision
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.view import NodeView
from koordebpf.strategies.page_cache.decide import BE_PAGE_CACHE_SUPPRESS, PageCacheDecision
from koordebpf.strategies.page_cache.measure import PageCacheCollector
from koordebpf.strategies.page_cache.values import PageCacheMeasured
from koordebpf.units import PAGE_BYTES

log = logging.getLogger(__name__)


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


class PageCacheRunner(StrategyRunner[PageCacheMeasured, PageCacheDecision]):
    """Logs when limits begin, fail and end, and why nothing can be limited."""

    def __init__(self, collector: PageCacheCollector, metrics: PageCacheMetrics) -> None:
        super().__init__("page cache", BE_PAGE_CACHE_SUPPRESS, PageCacheDecision, collector.measure)
        self._collector = collector
        self._metrics = metrics
        self._said = ""

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Take over whether pods are to be looked at in each second."""
        made = self.decided(decisions, view)
        if made is None or made.skipped == "not_due":
            return
        self._collector.is_active = bool(made.limited_pods or made.refaults_per_s)
        self._metrics.take(made)
        said = "no support" if made.skipped else "limited" if made.limited_pods else "failed" if made.failed else ""
        if said != self._said and (said or self._said == "limited"):
            log.info("page cache: %s", made.reason)
        self._said = said

    def families(self) -> Iterable[Metric]:
        """As `Runner.families`."""
        return self._metrics.families()

    def lines(self, measured: PageCacheMeasured, made: PageCacheDecision, view: NodeView) -> Mapping[str, PodLines]:
        """Return the limit of each pod; none while nothing is limited."""
        if not made.writes:
            return {}
        found = {}
        for uid, path in made.paths.items():
            own = (
                PodSetting(each.path, each.file.value, BE_PAGE_CACHE_SUPPRESS.gate, made.reason, each.value)
                for each in made.writes
                if each.path == path and isinstance(each.value, int)
            )
            found[uid] = PodLines(path, tuple(own))
        return found


def open_runner(node: NodeContext) -> PageCacheRunner:
    """Return it.

    Raises:  SupportError: no procfs.
    """
    watch = node.measuring.watch
    least_per_s = node.settings_of(BE_PAGE_CACHE_SUPPRESS).refault_rate
    collector = PageCacheCollector(watch.index, node.measuring.known, watch.scope.hierarchy, least_per_s)
    collector.due = node.due(collector.period_ns)
    collector.is_active = node.is_one_frame  # measured on a calm machine, too
    node.stack.callback(collector.close)
    return PageCacheRunner(collector, PageCacheMetrics())
