"""The dead man's switch for people: whom it would kill, when, and by whose rules. 80 columns."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.decision.dead_man import PlannedDeadMan
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.plan import Balance, FeaturePlan
from koordebpf.report.pages.columns import filled
from koordebpf.report.sentences import plain_words
from koordebpf.state.amount import MEMORY
from koordebpf.units import format_bytes, format_ns

_NAME = "dead man's switch"


def dead_man_lines(planned: PlannedDeadMan) -> list[str]:
    """Return what the switch would do after this round, without the ranking."""
    return [f"{_NAME} (deadMan.action: {planned.settings.action})", *filled(_sentence(planned), "  ")]


def dead_man_ranking(planned: PlannedDeadMan) -> FeaturePlan | None:
    """Return what its victim was chosen from, as of a feature; None: there is no victim.

    A kill has no grace period and asks no API: how the pod would be evicted is left out.
    """
    choice = planned.choice
    if choice.victim is None:
        return None
    victim = replace(choice.victim, killer=None, grace_s=None)
    return FeaturePlan(Verdict(choice.feature, False, ""), Balance(MEMORY), (victim,), choice.ranking)


def dead_man_diff(before: PlannedDeadMan | None, after: PlannedDeadMan | None) -> list[str]:
    """Return what is different about the second; nothing where both are the same."""
    if before == after:
        return []
    return [_NAME, *filled(f"before: {_said(before)}", "  "), *filled(f"after:  {_said(after)}", "  ")]


def _said(planned: PlannedDeadMan | None) -> str:
    return "deadMan.action is nothing" if planned is None else _sentence(planned)


def _sentence(planned: PlannedDeadMan) -> str:
    settings, choice = planned.settings, planned.choice
    if choice.victim is None:
        return f"is not armed: {plain_words(choice.reason)}"
    does = "kills" if settings.action == "kill" else "counts that it would kill"
    return (
        f"{does} {choice.reason} when the agent does not run for {format_ns(settings.after_ns)}, tasks stall"
        f" {format_ns(settings.stall_ns)} of it for memory and more than {format_bytes(choice.threshold_bytes)} of"
        f" {format_bytes(choice.capacity_bytes)} are in use: {choice.feature} would evict it first if the memory were"
        " full"
    )
