"""One sentence per tick that changed anything, and the first one of a plan; field names in plain words."""

from __future__ import annotations

import re

from msgspec import UNSET

from koordebpf.decision.node_plan import NodePlan
from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.plan import Plan
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import PendingRelease
from koordebpf.units import format_ns

_NOTHING = "no action: "
_NOT_CONFIG = re.compile(r"(\w+(?: or \w+)*) not config\b")
_FIELDS = {name.lower(): name for name in ResourceThresholdStrategy.__struct_fields__}
_WORDS = {
    Result.DONE: "evicted",
    Result.DRY_RUN: "dry run, not evicted:",
    Result.HELD: "held back from evicting",
    Result.REFUSED: "refused:",
    Result.GONE: "already gone:",
    Result.FAILED: "could not evict",
    Result.SENT: "evicting",
}


def headline(plan: NodePlan) -> str:
    """Return the plan's sentence; where nothing is evicted, what else would be done stands before it."""
    done = [*_explained(plan), *_written(plan), *_acted_on(plan)]
    if not done or any(feature.victims for feature in plan.features) or not plan.sentence.startswith(_NOTHING):
        return plain_words(plan.sentence)
    return f"{'; '.join(done)}; no eviction: {plain_words(plan.sentence.removeprefix(_NOTHING))}"


def plain_words(text: str) -> str:
    """Return a reason with Koordinator's words for a field that is missing replaced by what is to be set.

    >>> plain_words("resourceUsedThresholdWithBE is unusable: EvictEnabledPriorityThreshold not config")
    'resourceUsedThresholdWithBE is unusable: set evictEnabledPriorityThreshold'
    """
    return _NOT_CONFIG.sub(lambda found: f"set {' or '.join(map(_field, found[1].split(' or ')))}", text)


def _field(name: str) -> str:
    if name.lower() == "resourcethresholdstrategy":
        return "resourceUsedThresholdWithBE"
    return _FIELDS.get(name.lower(), name)


def _explained(plan: NodePlan) -> list[str]:
    explained = [each.explained for each in plan.strategies.values() if each.explained is not UNSET]
    return [done for each in explained if (done := each.done()) is not None]


def _written(plan: NodePlan) -> list[str]:
    others = {name: each for name, each in plan.strategies.items() if each.explained is UNSET}
    counts = {name: len(each.writes) + len(each.sysctls) for name, each in others.items()}
    return [f"{name} writes {count} file{'s' if count > 1 else ''}" for name, count in counts.items() if count]


def _acted_on(plan: NodePlan) -> list[str]:
    said = []
    for name, each in plan.strategies.items():
        if count := len(each.pods) + each.more_pods:
            verb = "takes memory" if each.pods[0].reclaim_bytes is not None else "moves tasks"
            said.append(f"{name} {verb} of {count} pod{'s' if count > 1 else ''}")
    return said


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
