"""The sink that warns of evictions ahead: in the log and as Events on the node and on the pods that would be first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from koordebpf.policy.foresight import (
    EvictionWarningSettings,
    Kind,
    WarningMemory,
    WarningNews,
    first_victims,
    is_reached,
    next_warning,
)
from koordebpf.policy.plan import Victim
from koordebpf.printable import printable
from koordebpf.report.events import PodEvent
from koordebpf.report.prom.decision import Histogram
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.measured import TimeTo
from koordebpf.state.view import NodeView
from koordebpf.store.sink import Event, RoundEnded
from koordebpf.units import format_bytes, format_ns

_log = logging.getLogger("koordebpf")

REASON = "EvictionSoon"
_PODS = 3  # Why: a node that is full evicts a few at a time, and who is fourth changes until then
_LEAD_BOUNDS_S = (1.0, 2.5, 5.0, 10.0, 20.0, 60.0)  # within 20 s, as a rule

Post = Callable[[PodEvent, float], None]  # an Event, and when it happened in seconds since the epoch


class ForesightSink:
    """Looks at each round's forecast. At most one warning in an episode, with at most four Events.

    `counts` are warnings, those that came true or to nothing, and crossings without a warning; `lead` is the time from
    a warning to the crossing.

    Args:
        settings: when to warn.
        node: its name.
        post: Events; None: there is no API server.
        dry_run: nothing is evicted.
    """

    name = "eviction_warning"
    takes = (RoundEnded,)

    def __init__(self, settings: EvictionWarningSettings, node: str, post: Post | None, *, dry_run: bool) -> None:
        self._settings = settings
        self._node = node
        self._post = post
        self._dry_run = dry_run
        self._memory = WarningMemory()
        self.counts: dict[Kind, int] = {"warned": 0, "came_true": 0, "came_to_nothing": 0, "unforeseen": 0}
        self.lead = Histogram(_LEAD_BOUNDS_S)

    def publish(self, event: Event) -> None:
        """Warn, or say what became of a warning."""
        match event:
            case RoundEnded():
                self._forecast(event)

    def _forecast(self, event: RoundEnded) -> None:
        view, is_short = event.view, is_reached(event.decision.plan)
        forecast = view.forecast.threshold if view.forecast is not None and is_short is not None else None
        self._memory, news = next_warning(self._memory, view.now_ns, forecast, self._settings, is_short=bool(is_short))
        if news is not None:
            self._report(news, event, forecast)

    def _report(self, news: WarningNews, event: RoundEnded, forecast: TimeTo | None) -> None:
        self.counts[news.kind] += 1
        match news.kind:
            case "warned" if forecast is not None:
                self._warn(event, forecast)
            case "came_true" if news.after_ns is not None:
                self.lead.observe_ns(news.after_ns)
                _log.info("the threshold is reached %s after the warning", format_ns(news.after_ns))
            case "came_to_nothing" if news.after_ns is not None:
                _log.info("the warning of %s ago came to nothing", format_ns(news.after_ns))

    def _warn(self, event: RoundEnded, forecast: TimeTo) -> None:
        view, settings = event.view, event.tick.settings.eviction
        victims = first_victims(view, settings)
        why = forecast_sentence(view, forecast)
        held = f"; held back now: {event.decision.holding[0].sentence}" if event.decision.holding else ""
        sentence = f"{self._node} {_verb('evict', self._dry_run)} {_when(forecast)}: {why}; {_who(victims)}{held}"
        _log.warning("%s", printable(sentence))
        if self._post is None or view.wall_s is None:
            return
        self._post(PodEvent("", self._node, self._node, REASON, printable(sentence), about="Node"), view.wall_s)
        verb = "would be evicted" if self._dry_run else "is evicted"
        for place, victim in enumerate(victims[:_PODS], 1):
            pod = victim.candidate
            text = f"{pod.namespace}/{pod.name} {verb} {_when(forecast)}, {_ordinal(place, len(victims))}: {why}{held}"
            self._post(PodEvent(pod.namespace, pod.name, pod.uid, REASON, printable(text)), view.wall_s)


def forecast_sentence(view: NodeView, forecast: TimeTo) -> str:
    """Return what is forecast of the node's memory."""
    strategy, threshold = view.strategy, threshold_bytes(view.strategy, view.capacity_bytes)
    percent = None if strategy is None else strategy.memoryEvictThresholdPercent
    mark = f"{percent} % ({format_bytes(threshold)})" if threshold is not None else "its threshold"
    used = "" if view.used_bytes is None else f", now {format_bytes(view.used_bytes)},"
    high = "or more" if forecast.high_ns is None else f"to {format_ns(forecast.high_ns)}"
    return f"memory in use{used} is forecast to reach {mark} in {format_ns(forecast.low_ns)} {high}"


def _verb(verb: str, dry_run: bool) -> str:
    return f"would {verb}" if dry_run else f"{verb}s"


def _when(forecast: TimeTo) -> str:
    return f"in {format_ns(forecast.point_ns)}"


def _who(victims: Sequence[Victim]) -> str:
    if not victims:
        return "no pod could be evicted"
    names = [f"{each.candidate.namespace}/{each.candidate.name}" for each in victims[:_PODS]]
    more = f" and {len(victims) - _PODS} more" if len(victims) > _PODS else ""
    return f"first {', '.join(names)}{more}"


def _ordinal(place: int, number: int) -> str:
    return f"as number {place} of {number}" if number > 1 else "alone"
