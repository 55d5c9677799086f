"""One sentence per tick that changed anything; repeats are rare and counted."""

from __future__ import annotations

from collections import OrderedDict

from koordebpf.act.guards.rules import ClosedGuard
from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.policy.plan import Plan
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PendingRelease
from koordebpf.units import NS_PER_S, format_ns

_MAX_KEYS = 256

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


class RepeatFilter:
    """Lets a sentence through when it is new, then at most every `every_ns` with the number that was held back.

    `key` says what the sentence is about (a guard's code, a pod's uid and result): numbers in the text may change with
    every tick without making it news.
    """

    def __init__(self, every_ns: int = 30 * NS_PER_S) -> None:
        self._every_ns = every_ns
        self._said: OrderedDict[str, tuple[int, int]] = OrderedDict()  # key → said at, held back since

    def say(self, key: str, sentence: str, now_ns: int) -> str | None:
        """Return the sentence to print, or None."""
        said_ns, suppressed = self._said.get(key, (None, 0))
        if said_ns is not None and now_ns - said_ns < self._every_ns:
            self._said[key] = (said_ns, suppressed + 1)
            return None
        self._said[key] = (now_ns, 0)
        self._said.move_to_end(key)
        if len(self._said) > _MAX_KEYS:
            self._said.popitem(last=False)
        return f"{sentence} ({suppressed} more like this suppressed)" if suppressed else sentence
