"""Metrics of the inputs of decisions (pods and signals) and of the outputs (audit, log and Events)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from koordebpf.collect.node_watch import SignalState
from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.report.events import EventPoster
from koordebpf.report.prom.bounded import by_label
from koordebpf.state.view import NodeView
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.store.line_sink import LineSink
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.report.prom.what_if.shadow import ShadowMetrics
    from koordebpf.store.recorder.recorder import RecorderCounts

MAX_POD_SERIES = 200  # Why: above the 110 pods of a default kubelet; the rest share one overflow series
OVERFLOW_POD = "_other"


class PodMetrics:
    """The pods that are known, and how long each stalled."""

    def __init__(self) -> None:
        self.by_attribution: dict[str, int] = {}  # state → pods: attributed, without_cgroup, without_pod
        self.synced_age_s: float | None = None
        self._stalls_ns: dict[tuple[str, str, str], int] = {}

    def take(self, view: NodeView) -> None:
        """Take over which pods there are."""
        attributed = sum(pod.cgroup_id is not None for pod in view.pods)
        self.by_attribution = {
            "attributed": attributed,
            "without_cgroup": len(view.pods) - attributed,
            "without_pod": len(view.strays),
        }
        self.keep_only((pod.namespace, pod.name) for pod in view.pods)

    def add_stall(self, namespace: str, pod: str, scope: str, stall_ns: int) -> None:
        """Add to a pod's stalls; `scope` is global (the node's shortage) or limit (the pod's own)."""
        key = (namespace, pod, scope)
        if key not in self._stalls_ns and len(self._stalls_ns) >= MAX_POD_SERIES:
            key = ("", OVERFLOW_POD, scope)
        self._stalls_ns[key] = self._stalls_ns.get(key, 0) + stall_ns

    def keep_only(self, pods: Iterable[tuple[str, str]]) -> None:
        """Drop the series of every pod but these (namespace, name); the overflow stays."""
        known = {*pods, ("", OVERFLOW_POD)}
        self._stalls_ns = {key: ns for key, ns in self._stalls_ns.items() if key[:2] in known}

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        stalls = CounterMetricFamily(
            "koordebpf_pod_stall_seconds",
            "Time tasks of the pod stalled in reclaim, by whose shortage it was.",
            labels=["namespace", "pod", "scope"],
        )
        for labels, stall_ns in self._stalls_ns.copy().items():
            stalls.add_metric(labels, stall_ns / NS_PER_S)
        yield stalls
        text = "Pods by state of their attribution."
        yield by_label(GaugeMetricFamily, "koordebpf_pods", text, "state", self.by_attribution)
        if self.synced_age_s is not None:
            yield GaugeMetricFamily("koordebpf_pods_age_seconds", "Age of the pod list.", self.synced_age_s)


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
        text = "Events that a sink failed on."
        yield by_label(CounterMetricFamily, "koordebpf_sink_errors", text, "sink", self.errors)
        if self.recorder is not None:
            yield from _recorder_families(self.recorder)
        if self.shadow is not None:
            yield from self.shadow.families()


def _recorder_families(counts: RecorderCounts) -> Iterator[Metric]:
    yield CounterMetricFamily("koordebpf_recorder_rounds", "Rounds that were recorded.", counts.rounds)
    yield CounterMetricFamily("koordebpf_recorder_lost_rounds", "Rounds that were not recorded.", counts.lost_rounds)
    yield CounterMetricFamily("koordebpf_recorder_lost_events", "Events that were not recorded.", counts.lost_events)
    yield GaugeMetricFamily("koordebpf_recorder_bytes", "The recorder's files.", counts.bytes)
    text = "Whether the last round could not be recorded: 1, else 0."
    yield GaugeMetricFamily("koordebpf_recorder_failing", text, counts.problem is not None)
    yield CounterMetricFamily("koordebpf_recorder_cpu_seconds", "CPU time of the recorder's thread.", counts.cpu_s)
