"""Kills a pod that the API server has agreed to evict, and that still holds its memory when its time is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.act.evict.actuator import Actuator
from koordebpf.act.evict.fallback import LastResort
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.detect.verdict import USED
from koordebpf.policy.evict.grace import own_grace_s
from koordebpf.policy.plan import Plan, Victim
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.units import NS_PER_S, format_bytes, format_ns


class Evicted(msgspec.Struct, frozen=True):
    """A victim whose eviction was sent, for a feature that judges memory in use."""

    feature: str
    victim: Victim
    sent_ns: int
    grace_s: int  # what it was given
    is_accepted: bool = False


class Overdue:
    """Remembers who was evicted through the API server, and says who is to be killed.

    The second victim is not chosen because the first is late: the first is killed before that.

    Args:
        kill: ends a cgroup.
        kill_after_ns: how long a victim has at least.
        pending_max_ns: how long at most, whatever its grace period says.
    """

    def __init__(self, kill: Actuator, *, kill_after_ns: int, pending_max_ns: int) -> None:
        self.kill = kill
        self._kill_after_ns = kill_after_ns
        self._pending_max_ns = pending_max_ns
        self._evicted: dict[str, Evicted] = {}

    def sent(self, feature: str, victim: Victim, view: NodeView, sent_ns: int) -> None:
        """Take note of a victim that was handed to the API server; one evicted for something else is never killed."""
        if not victim.for_use:
            return
        uid = victim.candidate.uid
        pod = next((pod for pod in view.pods if pod.uid == uid), None)
        own_s = own_grace_s(pod) if pod is not None else 0
        self._evicted[uid] = Evicted(feature, victim, sent_ns, own_s if victim.grace_s is None else victim.grace_s)

    def note(self, outcome: Outcome) -> None:
        """Take note of an answer: only who was really evicted is killed for being late."""
        if outcome.result is Result.SENT or (found := self._evicted.get(outcome.uid)) is None:
            return
        if outcome.executor == "api" and outcome.result is Result.DONE:
            self._evicted[outcome.uid] = replace(found, is_accepted=True)
        else:
            del self._evicted[outcome.uid]

    def look(self, view: NodeView, plan: Plan) -> Plan | None:
        """Return the plan that kills those whose time is over while the node is short of memory; None: no pod's is."""
        pending = {entry.uid: entry for entry in view.pending}
        self._evicted = {uid: each for uid, each in self._evicted.items() if uid in pending}
        if not any(need.resource == USED for feature in plan.features for need in feature.verdict.needs):
            return None
        over = [each for uid, each in self._evicted.items() if self._is_over(each, pending[uid], view.now_ns)]
        return killing(plan, over, view) if over else None

    def _is_over(self, each: Evicted, entry: PendingRelease, now_ns: int) -> bool:
        has_ns = max(self._kill_after_ns, min(each.grace_s * NS_PER_S, self._pending_max_ns))
        return each.is_accepted and entry.failed_ns is None and now_ns - each.sent_ns >= has_ns


def open_overdue(config: AgentConfig, executor: Actuator) -> Overdue | None:
    """Return what kills the overdue; None where executor.killAfter is not configured."""
    kill = executor.kill if isinstance(executor, LastResort) else None
    if kill is None or config.kill_after_s is None:
        return None
    after_ns = int(config.kill_after_s * NS_PER_S)
    return Overdue(kill, kill_after_ns=after_ns, pending_max_ns=config.eviction.pending_max_ns)


def killing(plan: Plan, over: Sequence[Evicted], view: NodeView) -> Plan:
    """Return the plan with these as its only victims, by what they hold now."""
    held = {pod.uid: credit_bytes(pod) for pod in view.pods}
    victims = [(each, _now(each.victim, held)) for each in over]
    names = ", ".join(
        f"{victim.candidate.namespace}/{victim.candidate.name}, which was evicted"
        f" {format_ns(view.now_ns - each.sent_ns)} ago and still holds {format_bytes(victim.candidate.credit_bytes)}"
        for each, victim in victims
    )
    features = tuple(
        replace(feature, victims=tuple(victim for each, victim in victims if each.feature == feature.verdict.feature))
        for feature in plan.features
    )
    return replace(plan, sentence=f"killing {names}; no other pod is evicted before that", features=features)


def _now(victim: Victim, held: Mapping[str, int]) -> Victim:
    pod = victim.candidate
    return replace(victim, candidate=replace(pod, credit_bytes=held.get(pod.uid, pod.credit_bytes)))
