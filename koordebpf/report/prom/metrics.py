"""Prometheus metrics, built at the scrape from numbers that the agent sets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from koordebpf import __version__
from koordebpf.act.writer.change import WriteResult
from koordebpf.collect.node_watch import SignalState
from koordebpf.kernel.io.worker import thread_errors
from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.evict.candidates.eligibility import Eligibility
from koordebpf.policy.foresight import Kind
from koordebpf.report.events import EventPoster
from koordebpf.report.prom.bounded import by_label
from koordebpf.report.prom.decision import DecisionMetrics, Histogram
from koordebpf.report.prom.indicators import IndicatorMetrics
from koordebpf.report.prom.koordlet import KoordletMetrics
from koordebpf.report.prom.pods import POD_SERIES, LedgerMetrics, PodMetrics, PodSeries, forecast_families
from koordebpf.report.prom.series import SeriesMetrics
from koordebpf.state.measured import NodeForecast, NodeMeasure, PsiLine
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView, PodView
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.store.line_sink import LineSink

if TYPE_CHECKING:
    from koordebpf.report.eviction_hooks import EvictionHookSink
    from koordebpf.report.foresight import ForesightSink
    from koordebpf.report.prom.shadow import ShadowMetrics
    from koordebpf.store.recorder.recorder import RecorderCounts

FileWrites = Callable[[], Counter[tuple[str, WriteResult]]]  # attempts since the start; asked at the scrape


# Metrics of hooks around evictions, and of warnings before them.


def hook_families(counts: Mapping[tuple[str, str], int], spent_s: Mapping[str, float]) -> Iterator[Metric]:
    """Yield calls by hook and outcome, and how long they took: at most eight hooks can be set."""
    text = "Calls of hooks before and after evictions, by how they ended."
    family = CounterMetricFamily("koordebpf_eviction_hook_calls", text, labels=["hook", "outcome"])
    for labels, number in counts.items():
        family.add_metric(labels, number)
    yield family
    text = "How long calls of hooks took, all together."
    family = CounterMetricFamily("koordebpf_eviction_hook_seconds", text, labels=["hook"])
    for hook, seconds in spent_s.items():
        family.add_metric([hook], seconds)
    yield family


def warning_families(counts: Mapping[Kind, int], lead: Histogram) -> Iterator[Metric]:
    """Yield how often evictions were warned of, what became of that, and how long before."""
    text = "Warnings of evictions by the forecast, what became of them, and crossings without one."
    family = CounterMetricFamily("koordebpf_eviction_warnings", text, labels=["event"])
    for kind, number in counts.items():
        family.add_metric([kind], number)
    yield family
    text = "From a warning to the crossing of the threshold that it warned of."
    yield lead.family("koordebpf_eviction_warning_lead_seconds", text)


class NodeMetrics:
    """The node as last measured; None: not yet."""

    def __init__(self, most_forecast_pods: int = 0) -> None:
        self.most_forecast_pods = most_forecast_pods  # of which the forecast is shown
        self.measure: NodeMeasure | None = None
        self.capacity_bytes: int | None = None
        self.marks: dict[str, dict[str, int]] = {}  # feature that judges memory in use → mark → bytes
        self.forecast: NodeForecast | None = None
        self.forecast_pods: tuple[PodView, ...] = ()  # those that have one
        self.eligibility: Eligibility | None = None
        self.series: SeriesMetrics | None = None
        self.file_writes: list[FileWrites] = []  # of each that writes
        self.strategies: list[Callable[[], Iterable[Metric]]] = []  # of those whose gate is on

    def take(self, view: NodeView) -> None:
        """Take over what a full measurement says of the node."""
        self.measure, self.capacity_bytes = view.measured.node, view.capacity_bytes
        self.forecast, self.forecast_pods = view.forecast, tuple(pod for pod in view.pods if pod.forecast)

    def families(self) -> Iterator[Metric]:
        """Yield its metrics, without those of the forecast."""
        if self.measure is not None:
            yield from _families(self.measure, self.capacity_bytes)
        yield _marks(self.marks.copy())
        yield from _eligible(self.eligibility)
        if self.series is not None:
            yield from self.series.families()
        yield _file_writes(each() for each in self.file_writes)
        for families in self.strategies:
            yield from families()


def _eligible(found: Eligibility | None) -> Iterator[Metric]:
    if found is None:
        return
    yield GaugeMetricFamily(
        "koordebpf_eligible_pods",
        "Pods that may be evicted, now or later; at 0 nothing ever is.",
        found.eligible,
    )
    text = "Pods that are never evicted as they and the strategy are, by reason."
    others = GaugeMetricFamily("koordebpf_ineligible_pods", text, labels=["reason"])
    for reason, count in found.reasons.items():
        others.add_metric([reason], count)
    yield others


def _families(node: NodeMeasure, capacity_bytes: int | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("koordebpf_node_used_bytes", "Memory in use as the decision sees it.", node.used_bytes)
    if capacity_bytes is not None:
        yield GaugeMetricFamily("koordebpf_node_capacity_bytes", "Memory the percents refer to.", capacity_bytes)
    ratio = GaugeMetricFamily("koordebpf_node_psi_avg10_ratio", "Memory pressure over 10 s.", labels=["degree"])
    total = CounterMetricFamily("koordebpf_node_psi_stall_seconds", "Memory pressure, sum.", labels=["degree"])
    lines: tuple[tuple[str, PsiLine | None], ...] = (("some", node.psi_some), ("full", node.psi_full))
    for degree, line in lines:
        if line is not None:
            ratio.add_metric([degree], line.avg10 / 100)
            total.add_metric([degree], line.total_us / 1_000_000)
    yield ratio
    yield total


def _marks(marks: Mapping[str, Mapping[str, int]]) -> Metric:
    text = "Memory in use at which a feature evicts, and down to which."
    family = GaugeMetricFamily("koordebpf_node_threshold_bytes", text, labels=["feature", "mark"])
    for feature, of_feature in marks.items():
        for mark, value in of_feature.items():
            family.add_metric([feature, mark], value)
    return family


def _file_writes(counts: Iterable[Counter[tuple[str, WriteResult]]]) -> Metric:
    text = "Cgroup and sysctl writes by file and outcome."
    family = CounterMetricFamily("koordebpf_file_writes", text, labels=["file", "result"])
    for (file, result), count in sum(counts, Counter[tuple[str, WriteResult]]()).items():
        family.add_metric([file, result.value], count)
    return family


class SignalMetrics:
    """How good the kernel's signals are, and how many there were."""

    def __init__(self) -> None:
        self.quality: SignalQuality | None = None
        self.lost = 0
        self.other_kubepods = 0
        self.records = 0
        self.lost_records = 0
        self.missed_runs = 0
        self.lost_ends = 0

    def take(self, signals: SignalState) -> None:
        """Take over the state of the node's signals, and the backend's counters where it has any."""
        self.quality, self.lost, self.other_kubepods = signals.quality, len(signals.lost), signals.other_kubepods
        if totals := signals.totals:
            self.records, self.lost_records = totals.ring_sent, totals.ring_lost
            self.missed_runs, self.lost_ends = totals.missed_runs, totals.lost_ends

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        if self.quality is not None:
            quality = {name: getattr(self.quality, name) for name in ("backend", "stalls", "births", "scan")}
            yield InfoMetricFamily("koordebpf_signals", "What decisions rest on.", quality)
        yield GaugeMetricFamily("koordebpf_lost_signals", "Signals that worked at start only.", self.lost)
        yield GaugeMetricFamily(
            "koordebpf_other_kubepods", "Directories called kubepods that are not the kubelet's.", self.other_kubepods
        )
        yield CounterMetricFamily("koordebpf_records", "Kernel records received.", self.records)
        yield CounterMetricFamily("koordebpf_lost_records", "Kernel records lost.", self.lost_records)
        yield CounterMetricFamily("koordebpf_missed_runs", "Runs of BPF programs passed over.", self.missed_runs)
        yield CounterMetricFamily("koordebpf_lost_ends", "Stalls whose end was never seen.", self.lost_ends)


class SinkMetrics:
    """What could not be written, or waits to be."""

    def __init__(self) -> None:
        self.audit: AuditTrail | None = None
        self.log_sink: LineSink | None = None
        self.events: EventPoster | None = None
        self.recorder: RecorderCounts | None = None  # None: nothing is recorded
        self.shadow: ShadowMetrics | None = None  # None: no configuration is judged
        self.hooks: EvictionHookSink | None = None  # None: none is set
        self.foresight: ForesightSink | None = None  # None: it never warns
        self.errors: Mapping[str, int] = {}  # by sink

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        audit, events = self.audit, self.events
        yield CounterMetricFamily("koordebpf_audit_dropped", "Audit lines lost.", audit.dropped if audit else 0)
        waiting = audit.waiting if audit else 0
        yield GaugeMetricFamily("koordebpf_audit_waiting", "Audit lines not written yet.", waiting)
        if self.log_sink is not None:
            yield CounterMetricFamily("koordebpf_log_dropped", "Log lines lost.", self.log_sink.dropped)
            yield GaugeMetricFamily("koordebpf_log_waiting", "Log lines not written yet.", self.log_sink.waiting)
        dropped = events.dropped if events else 0
        yield CounterMetricFamily("koordebpf_events_dropped", "Kubernetes Events not recorded.", dropped)
        text = "Events that a sink failed on, and reports that could not be made."
        yield by_label(CounterMetricFamily, "koordebpf_sink_errors", text, "sink", self.errors)
        if self.recorder is not None:
            yield from _recorder_families(self.recorder)
        if self.hooks is not None:
            yield from hook_families(self.hooks.counts(), self.hooks.spent_s())
        if self.foresight is not None:
            yield from warning_families(self.foresight.counts, self.foresight.lead)
        if self.shadow is not None:
            yield from self.shadow.families()


def _recorder_families(counts: RecorderCounts) -> Iterator[Metric]:
    yield CounterMetricFamily("koordebpf_recorder_rounds", "Rounds that were recorded.", counts.rounds)
    yield CounterMetricFamily("koordebpf_recorder_lost_rounds", "Rounds that were not recorded.", counts.lost_rounds)
    yield CounterMetricFamily("koordebpf_recorder_lost_events", "Events that were not recorded.", counts.lost_events)
    yield GaugeMetricFamily("koordebpf_recorder_bytes", "The recorder's files.", counts.bytes)
    text = "How far back each pace of the recorder reaches."
    reach = {pace.value: seconds for pace, seconds in counts.reach_s.items()}
    yield by_label(GaugeMetricFamily, "koordebpf_recorder_reach_seconds", text, "pace", reach)
    text = "Whether the last round could not be recorded: 1, else 0."
    yield GaugeMetricFamily("koordebpf_recorder_failing", text, counts.problem is not None)
    yield CounterMetricFamily("koordebpf_recorder_cpu_seconds", "CPU time of the recorder's thread.", counts.cpu_s)


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
        yield from self.indicators.families()
        yield from forecast_families(self.node.forecast, self.node.forecast_pods, self.node.most_forecast_pods)
        yield from self._own()
        if self._koordlet is not None:
            yield from self._koordlet.families(self.node.measure, time.monotonic_ns())
            if self.node.series is not None:
                yield from self.node.series.koordlet_families(self._koordlet.node, time.monotonic_ns())

    def _own(self) -> Iterator[Metric]:
        yield CounterMetricFamily("koordebpf_ticks", "Ticks of the loop.", self.ticks)
        yield CounterMetricFamily("koordebpf_failed_ticks", "Ticks ended by an error.", self.failed_ticks)
        text = "Unexpected errors of a thread, which continued."
        yield by_label(CounterMetricFamily, "koordebpf_thread_errors", text, "thread", thread_errors())
        if self._own_usage is not None:
            yield from self._own_usage.collect()
