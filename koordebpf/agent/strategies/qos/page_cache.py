"""BEPageCacheSuppress in the agent: measures for it. Its limits are written by `OwnStrategies`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from koordebpf.agent.strategies.measurements import Measurements
from koordebpf.agent.strategies.part import RegularPart
from koordebpf.policy.page_cache.strategy import BE_PAGE_CACHE_SUPPRESS, PageCacheDecision
from koordebpf.policy.strategies import settings_of
from koordebpf.policy.strategy import Decision
from koordebpf.report.prom.qos.page_cache import PageCacheMetrics
from koordebpf.state.measured import Measured
from koordebpf.state.view import NodeView

if TYPE_CHECKING:
    from koordebpf.agent.context import NodeContext
    from koordebpf.collect.memory.page_cache import PageCacheCollector

log = logging.getLogger(__name__)


class PageCachePart(RegularPart):
    """As `RoundPart`. Logs when limits begin, fail and end, and why nothing can be limited."""

    def __init__(self, collector: PageCacheCollector, metrics: PageCacheMetrics) -> None:
        self._collector = collector
        self._measurements = Measurements("page cache was", collector.measure)
        self._metrics = metrics
        self._said = ""

    def measure(self, measured: Measured, *, is_sample: bool) -> Measured:
        """As `RoundPart.measure`."""
        found = self._measurements.take(measured.now_ns, is_sample=is_sample)
        return measured.with_part(BE_PAGE_CACHE_SUPPRESS.part, found)

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Take over whether pods are to be looked at in each second."""
        made = decisions.get(BE_PAGE_CACHE_SUPPRESS.name)
        if not isinstance(made, PageCacheDecision) or made.skipped == "not_due":
            return
        self._collector.is_active = bool(made.limited_pods or made.refaults_per_s)
        self._metrics.take(made)
        said = "no support" if made.skipped else "limited" if made.limited_pods else "failed" if made.failed else ""
        if said != self._said and (said or self._said == "limited"):
            log.info("page cache: %s", made.reason)
        self._said = said


def open_page_cache(node: NodeContext) -> PageCachePart | None:
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
    collector.is_active = node.is_one_frame  # a machine that is calm is looked at, too
    node.stack.callback(collector.close)
    metrics = PageCacheMetrics()
    node.metrics.node.qos.append(metrics)
    return PageCachePart(collector, metrics)
