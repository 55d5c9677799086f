"""Hands what happens in the agent to everything that records or reports it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from koordebpf.act.writer.change import FileChange
from koordebpf.clock import Clock, SystemClock
from koordebpf.report.events import EventPoster, EventSink
from koordebpf.report.foresight import ForesightSink
from koordebpf.report.http.routes import Health
from koordebpf.report.log.sink import LogSink
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.sink import MetricsSink
from koordebpf.report.recent import Recent
from koordebpf.store.audit import AuditLog
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.store.frames import FrameLog
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import EVENTS, DecisionsInterrupted, Event, FileChanged, ReportFailed, Sink
from koordebpf.store.wal import InFlight

if TYPE_CHECKING:
    from koordebpf.jobs.shadow.sink import ShadowSink
    from koordebpf.report.eviction_hooks import EvictionHookSink
    from koordebpf.store.recorder.recorder import Recorder

log = logging.getLogger("koordebpf")


class Sinks:
    """Publishes each event to the sinks that take its type, in their order.

    An error of one concerns no other, and not the tick: it is counted in `errors`, and the first of each sink is
    logged with its traceback.
    """

    name = "all"
    takes = EVENTS

    def __init__(self, sinks: Sequence[Sink], clock: Clock) -> None:
        # Once, not with each event: to try every match of every sink takes twice the time.
        self._takers = {kind: tuple(each for each in sinks if kind in each.takes) for kind in EVENTS}
        self._clock = clock
        self.errors: dict[str, int] = {}  # by sink

    def add(self, sink: Sink) -> None:
        """Let one more take events, after the others."""
        for kind in sink.takes:
            self._takers[kind] += (sink,)

    def publish(self, event: Event) -> None:
        """Let those sinks take the event; a report that could not be made counts as an error of a sink of its name."""
        if isinstance(event, ReportFailed):
            self._count_error(event.report, f"{event.report} could not be counted", event.error)
        for sink in self._takers[type(event)]:
            try:
                sink.publish(event)
            except Exception as error:
                self._count_error(sink.name, f"sink {sink.name} failed on {type(event).__name__}", error)

    def publish_change(self, change: FileChange) -> None:
        """Publish a change of a file at the moment it is made."""
        self.publish(FileChanged(change, self._clock.wall_s()))

    def _count_error(self, name: str, what: str, error: Exception) -> None:
        self.errors[name] = count = self.errors.get(name, 0) + 1
        if count == 1:
            log.error("%s; more of its errors are only counted", what, exc_info=error)


def open_sinks(
    plans: OpenPlans,
    metrics: AgentMetrics,
    health: Health,
    recent: Recent,
    *,
    audit: AuditLog | None = None,
    in_flight: InFlight | None = None,
    events: EventPoster | None = None,
    hooks: EvictionHookSink | None = None,
    foresight: ForesightSink | None = None,
    frames: FrameLog | None = None,
    recorder: Recorder | None = None,
    shadow: ShadowSink | None = None,
    clock: Clock = SystemClock(),  # noqa: B008 - without state
) -> Sinks:
    """Return all sinks; they report what an agent before this one was ended in the middle of.

    The order matters: the plans are what others look victims up in, and the write-ahead log comes before reports.
    """
    trail = AuditTrail(audit, in_flight, plans)
    sinks = Sinks(
        (
            plans,
            trail,
            MetricsSink(metrics, plans),
            LogSink(plans),
            *((hooks,) if hooks else ()),
            *((foresight,) if foresight else ()),
            *((EventSink(events, plans, clock),) if events else ()),
            health,
            recent,
            *((frames,) if frames else ()),
            *((recorder,) if recorder else ()),
            *((shadow,) if shadow else ()),
        ),
        clock,
    )
    metrics.sinks.audit, metrics.sinks.events, metrics.sinks.errors = trail, events, sinks.errors
    metrics.sinks.hooks, metrics.sinks.foresight = hooks, foresight
    metrics.sinks.recorder = recorder.counts if recorder else None
    if shadow:
        from koordebpf.report.prom.shadow import ShadowMetrics

        metrics.sinks.shadow = ShadowMetrics(shadow)
    sinks.publish(DecisionsInterrupted(trail.left))
    return sinks
