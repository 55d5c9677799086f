"""Which pods the API server has agreed to evict, and which of them hold their memory for too long. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.grace import own_grace_s
from koordebpf.policy.plan import Plan, Victim
from koordebpf.state.amount import MEMORY, USED
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.units import NS_PER_S, format_bytes, format_ns


class EvictedPod(msgspec.Struct, frozen=True):
    """A victim whose eviction was sent, for a feature that judges memory in use."""

    feature: str
    victim: Victim
    sent_ns: int
    grace_s: int  # what it was given
    is_accepted: bool = False


class EvictedPods(msgspec.Struct, frozen=True, omit_defaults=True):
    """Pods that were evicted through the API server and may have to be killed.

    No second victim is evicted because the first is late: the first is killed before that.
    """

    pods: tuple[EvictedPod, ...] = ()

    def sent(self, feature: str, victim: Victim, view: NodeView, sent_ns: int) -> EvictedPods:
        """Return it after an eviction was sent; a pod that is evicted for something else than use is never killed."""
        if not victim.for_use:
            return self
        uid = victim.candidate.uid
        pod = next((pod for pod in view.pods if pod.uid == uid), None)
        own_s = own_grace_s(pod) if pod is not None else 0
        sent = EvictedPod(feature, victim, sent_ns, own_s if victim.grace_s is None else victim.grace_s)
        return EvictedPods((*(each for each in self.pods if each.victim.candidate.uid != uid), sent))

    def answered(self, outcome: Outcome) -> EvictedPods:
        """Return it after an answer: only a pod whose eviction the API server accepted is killed when it is overdue."""
        if outcome.result is Result.SENT or all(each.victim.candidate.uid != outcome.uid for each in self.pods):
            return self
        is_accepted = outcome.executor == "api" and outcome.result is Result.DONE
        return EvictedPods(
            tuple(
                replace(each, is_accepted=True) if each.victim.candidate.uid == outcome.uid else each
                for each in self.pods
                if is_accepted or each.victim.candidate.uid != outcome.uid
            )
        )

    def still_pending(self, view: NodeView) -> EvictedPods:
        """Return it without those whose memory is back."""
        pending = {entry.uid for entry in view.frame.pending}
        left = tuple(each for each in self.pods if each.victim.candidate.uid in pending)
        return self if len(left) == len(self.pods) else EvictedPods(left)


def overdue_plan(
    view: NodeView, plan: Plan, evicted: EvictedPods, *, kill_after_ns: int, pending_max_ns: int
) -> Plan | None:
    """Return the plan that kills the pods whose time is over while the node is short of memory; None: no pod's is.

    Args:
        view: the node.
        plan: of this view.
        evicted: earlier.
        kill_after_ns: how long a victim has at least.
        pending_max_ns: how long at most, whatever its grace period says.
    """
    if not evicted.pods:
        return None
    if not any(USED in feature.verdict.amounts for feature in plan.features):
        return None
    pending = {entry.uid: entry for entry in view.frame.pending}

    def is_over(each: EvictedPod, entry: PendingRelease) -> bool:
        has_ns = max(kill_after_ns, min(each.grace_s * NS_PER_S, pending_max_ns))
        return each.is_accepted and entry.failed_ns is None and view.now_ns - each.sent_ns >= has_ns

    over = [
        each
        for each in evicted.pods
        if (entry := pending.get(each.victim.candidate.uid)) is not None and is_over(each, entry)
    ]
    return _killing(plan, over, view) if over else None


# The plan with these as its only victims, by what they hold now.
def _killing(plan: Plan, over: Sequence[EvictedPod], view: NodeView) -> Plan:
    held = {pod.uid: credit_bytes(pod) for pod in view.pods}
    victims = [(each, _now(each.victim, held)) for each in over]
    names = ", ".join(
        f"{victim.candidate.namespace}/{victim.candidate.name}, which was evicted"
        f" {format_ns(view.now_ns - each.sent_ns)} ago and still holds"
        f" {format_bytes(victim.candidate.of(MEMORY).released)}"
        for each, victim in victims
    )
    features = tuple(
        replace(feature, victims=tuple(victim for each, victim in victims if each.feature == feature.verdict.feature))
        for feature in plan.features
    )
    return replace(plan, sentence=f"killing {names}; no other pod is evicted before that", features=features)


def _now(victim: Victim, held: Mapping[str, int]) -> Victim:
    pod = victim.candidate
    if pod.uid not in held:
        return victim
    now = tuple(replace(each, released=held[pod.uid]) if each.resource == MEMORY else each for each in pod.holdings)
    return replace(victim, candidate=replace(pod, holdings=now))
