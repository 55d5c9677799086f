"""Metrics of the signals that decisions rest on, and of the outputs (audit, log and Events)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from koordebpf.collect.node_watch import SignalState
from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.report.events import EventPoster
from koordebpf.report.prom.bounded import by_label
from koordebpf.report.prom.warning.families import hook_families, warning_families
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.store.line_sink import LineSink

if TYPE_CHECKING:
    from koordebpf.report.eviction_hooks import EvictionHookSink
    from koordebpf.report.foresight import ForesightSink
    from koordebpf.report.prom.what_if.shadow import ShadowMetrics
    from koordebpf.store.recorder.recorder import RecorderCounts


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
