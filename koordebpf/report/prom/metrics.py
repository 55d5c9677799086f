"""Prometheus metrics, built at the scrape from numbers that the agent sets."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from koordebpf import __version__
from koordebpf.kernel.proc.self_usage import SelfUsage
from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.report.prom.koordlet import KoordletMetrics
from koordebpf.report.prom.ledger import LedgerMetrics, forecast_families
from koordebpf.report.prom.suppression import SuppressionMetrics
from koordebpf.report.prom.wake import WakeMetrics
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeForecast, NodeMeasure, NodeView, PodView, PsiLine
from koordebpf.store.line_sink import LineSink
from koordebpf.units import NS_PER_S

MAX_POD_SERIES = 200  # Why: above the 110 pods of a default kubelet; the rest share one overflow series
OVERFLOW_POD = "_other"

# From half the time that is aimed at to where koordlet is: 1.1 s from the crossing, minutes of grace period.
_DECIDE_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_FREED_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Histogram:
    """Counts of durations in fixed buckets, in seconds."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe_ns(self, duration_ns: int) -> None:
        """Count one duration."""
        duration_s = duration_ns / NS_PER_S
        self._counts[bisect_left(self._bounds_s, duration_s)] += 1
        self._sum_s += duration_s

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """Return the metric, with cumulative buckets as Prometheus has them."""
        total = 0
        buckets = []
        for bound, count in zip((*map(str, self._bounds_s), "+Inf"), tuple(self._counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_s)


class AgentMetrics(Collector):
    """Everything `/metrics` shows. The loop writes, the HTTP server's threads read.

    Values that belong together are replaced as one object; the dictionaries are copied before they are walked, which
    is atomic under the interpreter's lock. Nothing is computed between scrapes. `koordlet`: Koordinator's names too.
    """

    def __init__(
        self, read_self: Callable[[], SelfUsage] | None = None, koordlet: KoordletMetrics | None = None
    ) -> None:
        self._read_self = read_self
        self._koordlet = koordlet
        self.node: NodeMeasure | None = None
        self.capacity_bytes: int | None = None
        self.need_bytes: dict[str, int] = {}  # feature → need of the last tick
        self.need_millicpu: dict[str, int] = {}  # of those that judge CPU
        self.closed_guards: tuple[str, ...] = ()  # codes
        self.pods_by_attribution: dict[str, int] = {}  # state → pods: attributed, without_cgroup, without_pod
        self.pods_synced_age_s: float | None = None
        self.quality: SignalQuality | None = None
        self.lost_signals = 0
        self.other_kubepods = 0
        self.is_dry_run = True
        self.pending_bytes = 0
        self.exempt_bytes: Mapping[str, int] = {}  # by reason
        self.barred_pods: Mapping[str | None, int] = {}  # by problem
        self.ticks = 0
        self.failed_ticks = 0
        self.released_bytes = 0
        self.records = 0
        self.lost_records = 0
        self.missed_runs = 0
        self.lost_ends = 0
        self.audit_dropped = 0
        self.audit_waiting = 0
        self.log_sink: LineSink | None = None
        self.events_dropped = 0
        self.seen_to_decided = Histogram(_DECIDE_BOUNDS_S)
        self.decided_to_freed = Histogram(_FREED_BOUNDS_S)
        self.ledger = LedgerMetrics()
        self.suppression = SuppressionMetrics()
        self.wake = WakeMetrics()
        self.forecast: NodeForecast | None = None
        self.forecast_pods: tuple[PodView, ...] = ()  # those that have one
        self._skipped: dict[tuple[str, str], int] = {}
        self._outcomes: dict[tuple[str, str, str], int] = {}
        self._stalls_ns: dict[tuple[str, str, str], int] = {}

    def take(self, view: NodeView) -> None:
        """Take over what a full measurement says of the node and its pods."""
        self.node, self.capacity_bytes = view.measure, view.capacity_bytes
        self.pending_bytes = sum(entry.credit_bytes for entry in view.pending if entry.failed_ns is None)
        self.barred_pods = Counter(entry.problem for entry in view.pending if entry.failed_ns is not None)
        attributed = sum(pod.cgroup_id is not None for pod in view.pods)
        self.pods_by_attribution = {
            "attributed": attributed,
            "without_cgroup": len(view.pods) - attributed,
            "without_pod": len(view.strays),
        }
        self.keep_pods((pod.namespace, pod.name) for pod in view.pods)
        self.ledger.keep_pods(pod.key for pod in view.pods)
        self.forecast, self.forecast_pods = view.forecast, tuple(pod for pod in view.pods if pod.forecast)

    def count_skipped(self, feature: str, reason: str) -> None:
        """Count one round of `feature` that was skipped; `reason` is a verdict's or guard's stable word."""
        self._skipped[feature, reason] = self._skipped.get((feature, reason), 0) + 1

    def count_outcome(self, outcome: Outcome, feature: str) -> None:
        """Count what became of one victim of a feature."""
        key = (feature, outcome.executor, outcome.result.value)
        self._outcomes[key] = self._outcomes.get(key, 0) + 1
        if self._koordlet and outcome.result is Result.DONE:
            self._koordlet.count_eviction(outcome.namespace, outcome.name, time.monotonic_ns())

    def add_stall(self, namespace: str, pod: str, scope: str, stall_ns: int) -> None:
        """Add to a pod's stalls; `scope` is global (the node's shortage) or limit (the pod's own)."""
        key = (namespace, pod, scope)
        if key not in self._stalls_ns and len(self._stalls_ns) >= MAX_POD_SERIES:
            key = ("", OVERFLOW_POD, scope)
        self._stalls_ns[key] = self._stalls_ns.get(key, 0) + stall_ns

    def keep_pods(self, pods: Iterable[tuple[str, str]]) -> None:
        """Drop the series of every pod but these (namespace, name); the overflow stays."""
        known = {*pods, ("", OVERFLOW_POD)}
        self._stalls_ns = {key: ns for key, ns in self._stalls_ns.items() if key[:2] in known}

    def collect(self) -> Iterator[Metric]:
        """Yield every metric. Cost: 1 ms at 200 pods."""
        yield InfoMetricFamily("koordebpf_build", "The agent's version.", {"version": __version__})
        yield from self._decision()
        yield from self._sources()
        if self.node is not None:
            yield from _node(self.node, self.capacity_bytes)
        yield from self.ledger.families()
        yield from self.suppression.families()
        yield from self.wake.families()
        yield from forecast_families(self.forecast, self.forecast_pods)
        yield from self._own()
        if self._koordlet is not None:
            held = None if self.is_dry_run else self.suppression
            yield from self._koordlet.families(self.node, time.monotonic_ns(), held)

    def _decision(self) -> Iterator[Metric]:
        need = GaugeMetricFamily("koordebpf_need_bytes", "Memory to be given back, last tick.", labels=["feature"])
        for feature, n in self.need_bytes.copy().items():
            need.add_metric([feature], n)
        yield need
        cores = GaugeMetricFamily("koordebpf_need_cpu_cores", "CPU to be given back, last tick.", labels=["feature"])
        for feature, n in self.need_millicpu.copy().items():
            cores.add_metric([feature], n / 1000)
        yield cores
        yield GaugeMetricFamily(
            "koordebpf_pending_release_bytes", "Credit of pods told to go that still hold memory.", self.pending_bytes
        )
        barred = GaugeMetricFamily(
            "koordebpf_barred_pods", "Pods that still hold memory after an eviction in vain.", labels=["reason"]
        )
        for problem, count in self.barred_pods.items():
            barred.add_metric([problem or ""], count)
        yield barred
        exempt = GaugeMetricFamily(
            "koordebpf_exempt_bytes", "Memory of pods that their owners' own words spare.", labels=["reason"]
        )
        for reason, held_bytes in self.exempt_bytes.items():
            exempt.add_metric([reason], held_bytes)
        yield exempt
        yield CounterMetricFamily("koordebpf_released_bytes", "Memory given back by victims.", self.released_bytes)
        evictions = CounterMetricFamily(
            "koordebpf_evictions",
            "Victims by the feature that chose them and by outcome; each answer of a retried eviction counts.",
            labels=["reason", "executor", "result"],
        )
        for outcome, count in self._outcomes.copy().items():
            evictions.add_metric(outcome, count)
        yield evictions
        skipped = CounterMetricFamily("koordebpf_skipped_rounds", "Rounds not judged.", labels=["feature", "reason"])
        for labels, count in self._skipped.copy().items():
            skipped.add_metric(labels, count)
        yield skipped
        guards = GaugeMetricFamily("koordebpf_guard_closed", "1 for each guard that forbids acting.", labels=["reason"])
        for code in self.closed_guards:
            guards.add_metric([code], 1)
        yield guards
        yield GaugeMetricFamily("koordebpf_dry_run", "1 where nothing is ever sent.", int(self.is_dry_run))
        yield self.seen_to_decided.family(
            "koordebpf_crossing_to_decision_seconds", "From the first sight of a crossing to the plan."
        )
        yield self.decided_to_freed.family(
            "koordebpf_decision_to_freed_seconds", "From the plan to the victims' memory free again."
        )

    def _sources(self) -> Iterator[Metric]:
        stalls = CounterMetricFamily(
            "koordebpf_pod_stall_seconds",
            "Time tasks of the pod stalled in reclaim, by whose shortage it was.",
            labels=["namespace", "pod", "scope"],
        )
        for labels, stall_ns in self._stalls_ns.copy().items():
            stalls.add_metric(labels, stall_ns / NS_PER_S)
        yield stalls
        pods = GaugeMetricFamily("koordebpf_pods", "Pods by state of their attribution.", labels=["state"])
        for state, count in self.pods_by_attribution.copy().items():
            pods.add_metric([state], count)
        yield pods
        if self.pods_synced_age_s is not None:
            yield GaugeMetricFamily("koordebpf_pods_age_seconds", "Age of the pod list.", self.pods_synced_age_s)
        if self.quality is not None:
            quality = {name: getattr(self.quality, name) for name in ("backend", "stalls", "births", "scan")}
            yield InfoMetricFamily("koordebpf_signals", "What decisions rest on.", quality)
        yield GaugeMetricFamily("koordebpf_lost_signals", "Signals that worked at start only.", self.lost_signals)
        yield GaugeMetricFamily(
            "koordebpf_other_kubepods", "Directories called kubepods that are not the kubelet's.", self.other_kubepods
        )
        yield CounterMetricFamily("koordebpf_records", "Kernel records received.", self.records)
        yield CounterMetricFamily("koordebpf_lost_records", "Kernel records lost.", self.lost_records)
        yield CounterMetricFamily("koordebpf_missed_runs", "Runs of BPF programs passed over.", self.missed_runs)
        yield CounterMetricFamily("koordebpf_lost_ends", "Stalls whose end was never seen.", self.lost_ends)
        yield CounterMetricFamily("koordebpf_audit_dropped", "Audit lines lost.", self.audit_dropped)
        yield GaugeMetricFamily("koordebpf_audit_waiting", "Audit lines not written yet.", self.audit_waiting)
        if self.log_sink is not None:
            yield CounterMetricFamily("koordebpf_log_dropped", "Log lines lost.", self.log_sink.dropped)
            yield GaugeMetricFamily("koordebpf_log_waiting", "Log lines not written yet.", self.log_sink.waiting)
        yield CounterMetricFamily("koordebpf_events_dropped", "Kubernetes Events not recorded.", self.events_dropped)

    def _own(self) -> Iterator[Metric]:
        yield CounterMetricFamily("koordebpf_ticks", "Ticks of the loop.", self.ticks)
        yield CounterMetricFamily("koordebpf_failed_ticks", "Ticks ended by an error.", self.failed_ticks)
        if self._read_self is not None:
            usage = self._read_self()
            yield CounterMetricFamily("koordebpf_own_cpu_seconds", "CPU time of the agent.", usage.cpu_s)
            yield GaugeMetricFamily("koordebpf_own_resident_bytes", "Resident memory of the agent.", usage.rss_bytes)
            yield GaugeMetricFamily("koordebpf_own_threads", "Threads of the agent.", usage.threads)
            yield GaugeMetricFamily("koordebpf_own_open_fds", "Open descriptors of the agent.", usage.open_fds)


def _node(node: NodeMeasure, capacity_bytes: int | None) -> Iterator[Metric]:
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
