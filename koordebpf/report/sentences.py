"""One sentence per tick that changed anything."""

from __future__ import annotations

from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.plan import Plan
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PendingRelease
from koordebpf.units import format_ns

_WORDS = {
    Result.DONE: "evicted",
    Result.DRY_RUN: "dry run, not evicted:",
    Result.HELD: "held back from evicting",
    Result.REFUSED: "refused:",
    Result.GONE: "already gone:",
    Result.FAILED: "could not evict",
    Result.SENT: "evicting",
}


def outcome_sentence(outcome: Outcome) -> str:
    """Return what became of one victim, for people."""
    return f"{_WORDS[outcome.result]} {outcome.namespace}/{outcome.name} by {outcome.executor}: {outcome.detail}"


def late_sentence(name: str, entry: PendingRelease, now_ns: int, barred_ns: int) -> str:
    """Return what is said of a pod that nothing more is expected of; `barred_ns`: for so long it is passed over."""
    if entry.failed_ns is None:
        return f"{name} was evicted and still holds its memory {format_ns(now_ns - entry.since_ns)} later"
    return f"{name} is passed over for {format_ns(barred_ns)}: its eviction brought nothing: {entry.why}"


def tick_sentence(
    plan: Plan, guards: tuple[ClosedGuard, ...], *, dry_run: bool, signals: SignalQuality | None = None
) -> str:
    """Return the sentence of one tick: the plan's, what it rests on, and what keeps the agent from carrying it out."""
    sentence = f"{plan.sentence} [{signals.short}]" if signals else plan.sentence
    if guards and plan.victims:
        return f"{sentence}; held: {'; '.join(guard.sentence for guard in guards)}"
    if dry_run and plan.victims:
        return f"{sentence} (dry run)"
    return sentence
