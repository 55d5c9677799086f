"""When to warn that the node will evict soon, whether the warning came true, and which pods would be first. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.policy.decide import arbitrate
from koordebpf.policy.detect import be_memory_evict, memory_evict
from koordebpf.policy.evict.features import MEMORY_FEATURES
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Plan, Victim
from koordebpf.policy.strategy import Empty
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.measured import TimeTo
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_MS, NS_PER_S

BY_USE = frozenset({be_memory_evict.FEATURE, memory_evict.FEATURE})  # what the forecast of the threshold is about
# Why 500 ms: one look may fall on a step that is none of a trend; a second one half a second later costs none of 20 s.
_CONFIRM_NS = 500 * NS_PER_MS
_NEAR = 2

Kind = Literal["warned", "came_true", "came_to_nothing", "unforeseen"]


class EvictionWarningSettings(msgspec.Struct, frozen=True):
    """When the log and Events warn of evictions for memory in use: by the forecast that `koordebpf top` shows.

    `ahead_ns` warn where two looks in a row forecast that the threshold is reached within this time; 0: never. Why
               20 s: a job can save its work in it; the alert KoordebpfEvictsSoon looks a minute ahead.
    `calm_ns`  a warning is over when the threshold was farther off than twice ahead for so long; until then
               there is no other one. Why 1 min: node and pods get at most one Event each in it.
    """

    ahead_ns: int = 20 * NS_PER_S
    calm_ns: int = 60 * NS_PER_S


NO_WARNING = EvictionWarningSettings(ahead_ns=0)


class WarningMemory(msgspec.Struct, frozen=True):
    """What is remembered from look to look; moments in nanoseconds of CLOCK_MONOTONIC.

    An episode begins with a warning or when the threshold is reached, and ends with `calm_ns` of calm.
    """

    soon_since_ns: int | None = None  # every look since forecast it
    warned_ns: int | None = None
    was_short: bool = False  # the threshold was reached in this episode
    calm_since_ns: int | None = None


class WarningNews(msgspec.Struct, frozen=True):
    """One piece of news. `after_ns`: since the warning; None: there was none."""

    kind: Kind
    after_ns: int | None = None


def next_warning(
    memory: WarningMemory, now_ns: int, forecast: TimeTo | None, settings: EvictionWarningSettings, *, is_short: bool
) -> tuple[WarningMemory, WarningNews | None]:
    """Return what to remember of this look, and what is news.

    Args:
        memory: of the look before.
        now_ns: of this one.
        forecast: when the threshold is reached; None: that is not in sight.
        settings: of warnings.
        is_short: it is reached, or acted ahead of.
    """
    if settings.ahead_ns == 0:
        return memory, None
    warned_ns = memory.warned_ns
    after_ns = None if warned_ns is None else now_ns - warned_ns
    if is_short:
        news = None if memory.was_short else WarningNews("unforeseen" if after_ns is None else "came_true", after_ns)
        return WarningMemory(warned_ns=warned_ns, was_short=True), news
    is_soon = forecast is not None and forecast.point_ns <= settings.ahead_ns
    if warned_ns is None and not memory.was_short:
        if not is_soon:
            return WarningMemory(), None
        since_ns = now_ns if memory.soon_since_ns is None else memory.soon_since_ns
        if now_ns - since_ns < _CONFIRM_NS:
            return WarningMemory(soon_since_ns=since_ns), None
        return WarningMemory(warned_ns=now_ns), WarningNews("warned")
    if forecast is not None and forecast.point_ns <= _NEAR * settings.ahead_ns:
        return WarningMemory(warned_ns=warned_ns, was_short=memory.was_short), None
    calm_since_ns = now_ns if memory.calm_since_ns is None else memory.calm_since_ns
    if now_ns - calm_since_ns < settings.calm_ns:
        return msgspec.structs.replace(memory, calm_since_ns=calm_since_ns), None
    return WarningMemory(), None if memory.was_short else WarningNews("came_to_nothing", after_ns)


def is_reached(plan: Plan) -> bool | None:
    """Tell whether a feature that judges memory in use fires; None: none judges it."""
    judged = [each.verdict for each in plan.features if each.verdict.feature in BY_USE and not each.verdict.skipped]
    return any(verdict.fires for verdict in judged) if judged else None


def first_victims(view: NodeView, settings: EvictSettings) -> tuple[Victim, ...]:
    """Return which pods would be evicted if this node, as it is now, were at its threshold.

    Args:
        view: the node, as a round's decision had it.
        settings: of eviction rounds.
    Cost:    that of a decision.
    """
    threshold = threshold_bytes(view.strategy, view.capacity_bytes)
    if threshold is None or view.used_bytes is None:
        return ()
    at_threshold = msgspec.structs.replace(view, used_bytes=max(threshold, view.used_bytes))
    asked = (each for each in MEMORY_FEATURES if each.name in BY_USE and each.is_asked(view.feature_gates))
    demands = [demand for each in asked for demand in each.decide(at_threshold, None, Empty(), settings).demands]
    return arbitrate(at_threshold, settings, demands).victims
