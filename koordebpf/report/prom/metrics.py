"""Prometheus metrics, built at the scrape from numbers that the agent sets."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from koordebpf import __version__
from koordebpf.kernel.io.worker import thread_errors
from koordebpf.report.prom.bounded import by_label
from koordebpf.report.prom.decision import DecisionMetrics
from koordebpf.report.prom.indicators import IndicatorMetrics
from koordebpf.report.prom.koordlet import KoordletMetrics
from koordebpf.report.prom.node import NodeMetrics
from koordebpf.report.prom.pods.budget import POD_SERIES, PodSeries
from koordebpf.report.prom.pods.ledger import LedgerMetrics, forecast_families
from koordebpf.report.prom.pods.stalls import PodMetrics
from koordebpf.report.prom.sources import SignalMetrics, SinkMetrics
from koordebpf.report.prom.suppression import SuppressionMetrics
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView


class AgentMetrics(Collector):
    """Everything `/metrics` shows, by topic. The loop writes, the HTTP server's threads read.

    Values that belong together are replaced as one object; the dictionaries are copied before they are walked, which
    is atomic under the interpreter's lock. Nothing is computed between scrapes. `koordlet`: Koordinator's names too;
    `own`: what this process uses. `pod_series`: the most series that have a pod's name in a label.
    """

    def __init__(
        self, koordlet: KoordletMetrics | None = None, own: Collector | None = None, pod_series: int = POD_SERIES
    ) -> None:
        series = PodSeries.of(pod_series)
        self._own_usage = own
        self._koordlet = koordlet
        self.decision = DecisionMetrics()
        self.pods = PodMetrics(series.stalls)
        self.signals = SignalMetrics()
        self.sinks = SinkMetrics()
        self.node = NodeMetrics(series.forecast_pods)
        self.ledger = LedgerMetrics(series.pairs)
        self.indicators = IndicatorMetrics()
        self.suppression = SuppressionMetrics()
        self.ticks = 0
        self.failed_ticks = 0

    @property
    def koordlet_node(self) -> str | None:
        """The Node's name in koordlet's metrics; None: they are not shown."""
        return self._koordlet.node if self._koordlet is not None else None

    def take(self, view: NodeView) -> None:
        """Take over what a full measurement says of the node and its pods."""
        self.node.take(view)
        self.decision.take_pending(view.frame.pending)
        self.pods.take(view)
        self.indicators.take(view)
        self.ledger.keep_pods(pod.key for pod in view.pods)

    def count_outcome(self, outcome: Outcome, feature: str) -> None:
        """Count what became of one victim of a feature."""
        self.decision.count_outcome(outcome, feature)
        if self._koordlet and outcome.result is Result.DONE:
            self._koordlet.count_eviction(outcome.namespace, outcome.name, time.monotonic_ns())

    def collect(self) -> Iterator[Metric]:
        """Yield every metric. Cost: 1 ms at 200 pods."""
        yield InfoMetricFamily("koordebpf_build", "The agent's version.", {"version": __version__})
        for part in (self.decision, self.pods, self.signals, self.sinks, self.node):
            yield from part.families()
        yield from self.ledger.families()
        yield from self.suppression.families()
        yield from self.indicators.families()
        yield from forecast_families(self.node.forecast, self.node.forecast_pods, self.node.most_forecast_pods)
        yield from self._own()
        if self._koordlet is not None:
            held = None if self.decision.is_dry_run else self.suppression
            yield from self._koordlet.families(self.node.measure, time.monotonic_ns(), held)
            if self.node.series is not None:
                yield from self.node.series.koordlet_families(self._koordlet.node, time.monotonic_ns())

    def _own(self) -> Iterator[Metric]:
        yield CounterMetricFamily("koordebpf_ticks", "Ticks of the loop.", self.ticks)
        yield CounterMetricFamily("koordebpf_failed_ticks", "Ticks ended by an error.", self.failed_ticks)
        text = "Unexpected errors of a thread, which continued."
        yield by_label(CounterMetricFamily, "koordebpf_thread_errors", text, "thread", thread_errors())
        if self._own_usage is not None:
            yield from self._own_usage.collect()
