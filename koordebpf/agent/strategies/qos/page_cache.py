"""BEPageCacheSuppress in the agent: measures for it. Its limits are written by `OwnStrategies`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from koordebpf.decision.strategies import settings_of
from koordebpf.policy.page_cache.strategy import BE_PAGE_CACHE_SUPPRESS, PageCacheDecision
from koordebpf.policy.strategy import Decision
from koordebpf.report.pod_settings import PodLines, PodSetting
from koordebpf.report.prom.qos.page_cache import PageCacheMetrics
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.page_cache import PageCacheMeasured
from koordebpf.state.view import NodeView

if TYPE_CHECKING:
    from koordebpf.collect.memory.page_cache import PageCacheCollector
    from koordebpf.runner.context import NodeContext

log = logging.getLogger(__name__)


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


def open_page_cache(node: NodeContext) -> PageCacheRunner | None:
    """Return it; None: its gate is off.

    Raises:  SupportError: no procfs.
    """
    if not node.config.feature_gates.get(BE_PAGE_CACHE_SUPPRESS.gate):
        return None
    from koordebpf.collect.memory.page_cache import PageCacheCollector

    watch = node.measuring.watch
    least_per_s = settings_of(BE_PAGE_CACHE_SUPPRESS, node.config).refault_rate
    collector = PageCacheCollector(watch.index, node.measuring.known, watch.scope.hierarchy, least_per_s)
    collector.due = node.due(collector.period_ns)
    collector.is_active = node.is_one_frame  # measured on a calm machine, too
    node.stack.callback(collector.close)
    return PageCacheRunner(collector, PageCacheMetrics())
