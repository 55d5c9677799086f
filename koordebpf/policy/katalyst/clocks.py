"""Since when thresholds are met, and for how long conditions are reported. Pure.

Source: katalyst-core pkg/agent/evictionmanager/manager.go, thresholds and conditions first and last observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.state.katalyst.measured import Condition, PluginAnswer
from koordebpf.units import NS_PER_S


class MetSince(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A threshold that is met without a break; `has_failed`: the plugin's last call gave no answer."""

    since_ns: int
    has_failed: bool = False


class LastMet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition, and when it was met last."""

    condition: Condition
    last_ns: int


def met_since(before: Mapping[str, MetSince], answers: Iterable[PluginAnswer], now_ns: int) -> dict[str, MetSince]:
    """Return since when each plugin's threshold is met, by plugin.

    One that is not met any more starts again. A single call that fails stops no clock, the second one in a row does.
    """
    after: dict[str, MetSince] = {}
    for answer in answers:
        known = before.get(answer.plugin)
        if answer.threshold is not None:
            after[answer.plugin] = MetSince(known.since_ns if known else now_ns)
        elif answer.problem is not None and known is not None and not known.has_failed:
            after[answer.plugin] = MetSince(known.since_ns, has_failed=True)
    return after


def is_actionable(answer: PluginAnswer, clocks: Mapping[str, MetSince], now_ns: int) -> bool:
    """Tell whether a threshold has been met for its grace period."""
    clock, threshold = clocks.get(answer.plugin), answer.threshold
    return threshold is not None and clock is not None and now_ns - clock.since_ns >= threshold.grace_s * NS_PER_S


def last_met(
    before: Iterable[LastMet], answers: Iterable[PluginAnswer], now_ns: int, transition_ns: int
) -> tuple[LastMet, ...]:
    """Return the conditions that are reported: met within the transition period, by name; none where that is 0."""
    kept = {each.condition.name: each for each in before}
    for answer in answers:
        of_threshold = answer.threshold.condition if answer.threshold else None
        for condition in (*answer.conditions, *((of_threshold,) if of_threshold else ())):
            kept[condition.name] = LastMet(condition, now_ns)
    return tuple(kept[name] for name in sorted(kept) if now_ns - kept[name].last_ns < transition_ns)
