"""A node carried forward under other settings: evicted pods are taken out of it, pods that were not are kept in. Pure.

The model, in full. A pod that is evicted here is in the node for as long as evicted pods took to release their memory,
and then its memory is taken out of every later round, until the recording shows that it has gone or was evicted there
too. A pod that was evicted in the recording and not here keeps the memory that it was last seen with, for as long as
the median of those pods that grew older than it and ended by themselves, and for at most `held_ns`. Nothing else
changes: whether other pods would have grown into the freed memory, whether a workload would have been started again,
and what a pod would have done that really was evicted is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision, TickFrame, decide_tick, tick_view
from koordebpf.decision.what_if.observed import Lifetimes, Observed
from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.pending import EvictedPods
from koordebpf.policy.memory import EvictionSent, NodeMeasured, after, settled
from koordebpf.policy.plan import Candidate
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.amount import CPU, MEMORY, USED
from koordebpf.state.build import with_memory
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import NS_PER_S

RELEASE_NS = NS_PER_S  # until the memory of an evicted pod is back, where nothing says how long that takes
HELD_NS = 600 * NS_PER_S  # Why: after ten minutes a batch pod's last known usage says little of it
_GUARDED_NS = NS_PER_S  # as the agent's pace has it: above the threshold with a guard closed


class Eviction(msgspec.Struct, frozen=True):
    """One eviction here. `freed_bytes`: what the pod holds at that moment."""

    at_ns: int
    uid: str
    namespace: str
    name: str
    freed_bytes: int


class Step(msgspec.Struct, frozen=True):
    """One round of this node. `is_apart`: it is not as the real one was, by memory or by pods."""

    used_bytes: int | None
    capacity_bytes: int
    is_above: bool  # its threshold, if it has one
    is_apart: bool
    held_bytes: int  # last known usage of pods that really were evicted and are not here
    evictions: tuple[Eviction, ...] = ()


class _Gone(msgspec.Struct, frozen=True):
    out_ns: int  # when its memory is back
    was_evicted: bool  # in the recording too, by now


class _Held(msgspec.Struct, frozen=True):
    pod: PodView
    until_ns: int


class World:
    """One configuration's node. `release_ns` may be changed at any time.

    Args:
        release_ns: from an eviction until its memory is back.
        held_ns: how long the last known usage of a pod is held at most.
        lifetimes: of the node's pods.
    """

    def __init__(
        self, release_ns: int = RELEASE_NS, held_ns: int = HELD_NS, lifetimes: Lifetimes | None = None
    ) -> None:
        self.release_ns = release_ns
        self._held_ns = held_ns
        self._lifetimes = lifetimes
        self._memory = DecisionMemory()
        self._gone: dict[str, _Gone] = {}
        self._held: dict[str, _Held] = {}
        self._due_ns = 0

    def step(self, seen: Observed, tick: TickFrame, facts: Sequence[PodFacts] | None = None) -> Step:
        """Decide one round of this node.

        Args:
            seen: the round as it really was.
            tick: the same under this configuration, as `Variant.applied` returns it.
            facts: as in `view_of_frame`.

        Raises:  ConfigError: a NodeSLO, ConfigMap or quantity in the frame is unusable.
        """
        now_ns = seen.view.now_ns
        if seen.is_first:
            self._memory, self._gone, self._held, self._due_ns = DecisionMemory(), {}, {}, 0
        self._remove_evicted(seen)
        self._forget(seen)
        base = _base_view(seen, tick, facts)
        view, held_bytes = self._carried_forward(base)
        if view.used_bytes is None:
            return Step(None, view.capacity_bytes, is_above=False, is_apart=bool(self._held), held_bytes=held_bytes)
        event = NodeMeasured(view, tick.settings.eviction.pending_max_ns, keeps_released=tick.frame.executor == "api")
        self._memory = settled(self._memory, event).memory
        view = with_memory(view, self._memory)
        decision = decide_tick(self._own(tick, now_ns), view, facts)
        threshold = threshold_bytes(view.strategy, view.capacity_bytes)
        is_out = any(now_ns >= each.out_ns and uid in seen.pods for uid, each in self._gone.items())
        return Step(
            used_bytes=view.used_bytes,
            capacity_bytes=view.capacity_bytes,
            is_above=threshold is not None and view.known_used_bytes >= threshold,
            is_apart=is_out or bool(held_bytes),
            held_bytes=held_bytes,
            evictions=self._evict(decision, view),
        )

    # A pod that is evicted in the recording and not here is held; one that is evicted in both is not.
    def _remove_evicted(self, seen: Observed) -> None:
        for pod, age_ns in seen.evicted:
            if (gone := self._gone.get(pod.uid)) is not None:
                self._gone[pod.uid] = replace(gone, was_evicted=True)
            else:
                left_ns = self._lifetimes.left_ns(age_ns) if self._lifetimes else None
                held_ns = self._held_ns if left_ns is None else min(left_ns, self._held_ns)
                self._held[pod.uid] = _Held(pod, seen.view.now_ns + held_ns)

    def _forget(self, seen: Observed) -> None:
        now_ns = seen.view.now_ns
        self._held = {uid: each for uid, each in self._held.items() if now_ns < each.until_ns}
        for uid, gone in tuple(self._gone.items()):
            is_over = uid not in seen.pods or (gone.was_evicted and uid not in seen.waiting)
            if now_ns >= gone.out_ns and is_over:
                del self._gone[uid]
                self._held.pop(uid, None)

    def _carried_forward(self, base: NodeView) -> tuple[NodeView, int]:
        if not self._gone and not self._held:
            return base, 0
        now_ns, pods, change, held_bytes = base.now_ns, [], 0, 0
        left = dict(self._held)
        for each in base.pods:
            pod, held, gone = each, left.pop(each.uid, None), self._gone.get(each.uid)
            if gone is not None and now_ns >= gone.out_ns:
                change -= credit_bytes(pod)
                continue
            if held is not None and (more := credit_bytes(held.pod) - credit_bytes(pod)) > 0:
                pod, change, held_bytes = held.pod, change + more, held_bytes + more
            pods.append(pod)
        for uid, held in left.items():
            gone = self._gone.get(uid)
            if gone is None or now_ns < gone.out_ns:
                pods.append(held.pod)
                more = credit_bytes(held.pod)
                change, held_bytes = change + more, held_bytes + more
        used = None if base.used_bytes is None else max(base.used_bytes + change, 0)
        # A forecast is of the real node; without one nothing is done ahead of the threshold.
        node = replace(base.measured.node, used_bytes=used, forecast=None)
        frame = replace(base.frame, measured=replace(base.measured, node=node))
        return replace(base, frame=frame, pods=tuple(pods), used_bytes=used, forecast=None), held_bytes

    # The round with what this node remembers in the place of what the agent did.
    def _own(self, tick: TickFrame, now_ns: int) -> TickFrame:
        effect = self._memory.effectiveness
        return replace(
            tick,
            frame=replace(
                tick.frame,
                pending=self._memory.pending,
                refused=self._memory.refused,
                evictions=self._memory.budget.recent(now_ns),
                killed=(),
            ),
            guards=replace(tick.guards, useless_evictions=effect.ineffective, useless_ns=effect.ineffective_ns),
            settings=replace(tick.settings, kill_after_ns=None),
            is_round_due=now_ns >= self._due_ns,
            evicted=EvictedPods(),
            ladder=None,
        )

    def _evict(self, decision: TickDecision, view: NodeView) -> tuple[Eviction, ...]:
        carried, now_ns = decision.carried, view.now_ns
        if carried is None:
            return ()
        if carried.guards:
            self._due_ns = now_ns + _GUARDED_NS
        allowed = {each.candidate.uid for each in carried.screening.allowed}
        found = []
        for feature in carried.plan.features:
            is_for_use = feature.verdict.stall is None and USED in feature.verdict.amounts
            for victim in feature.victims:
                pod = victim.candidate
                if pod.uid not in allowed:
                    continue
                sent = EvictionSent(pod, now_ns, view.known_used_bytes, is_for_use, feature.verdict.is_for(CPU))
                self._memory = after(self._memory, sent)
                was_evicted = pod.uid in self._held
                self._gone[pod.uid] = _Gone(now_ns + self.release_ns, was_evicted)
                found.append(_eviction(pod, now_ns))
        return tuple(found)


def _eviction(pod: Candidate, now_ns: int) -> Eviction:
    return Eviction(now_ns, pod.uid, pod.namespace, pod.name, pod.of(MEMORY).released)


# What was looked up of the real round serves every configuration that sees pods and capacity in the same way.
def _base_view(seen: Observed, tick: TickFrame, facts: Sequence[PodFacts] | None) -> NodeView:
    eviction, real = tick.settings.eviction, seen.tick.settings.eviction
    if (eviction.exemptions, eviction.strict_compat) != (real.exemptions, real.strict_compat):
        return tick_view(tick, facts)
    strategy = tick.frame.strategyInForce
    assert not isinstance(strategy, msgspec.UnsetType)  # `Variant.applied` sets it
    view = replace(seen.view, strategy=strategy, feature_gates=tick.frame.featureGates)
    # When the threshold will be crossed was forecast for the real one.
    return view if strategy == seen.view.strategy else replace(view, forecast=None)
