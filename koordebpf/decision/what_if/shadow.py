"""Shadow mode: configurations judged on an agent's own rounds beside the one that acts. They never act. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision, TickFrame
from koordebpf.decision.what_if.observed import Lifetimes, Observed, Observer
from koordebpf.decision.what_if.variant import Variant
from koordebpf.decision.what_if.week import NEAR_S, Lead, NodeCounts, ShadowCounts, ShadowDay
from koordebpf.decision.what_if.world import Eviction, World
from koordebpf.slo.strategies.resource_threshold import memory_evict_problem, threshold_bytes
from koordebpf.state.build import strategy_of_frame
from koordebpf.state.measured import NodeMeasure
from koordebpf.state.pods.facts import PodFacts, facts_of_pods
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_MS, NS_PER_S

_NEAR_NS = NEAR_S * NS_PER_S
_APART_NS = 60 * NS_PER_S  # two shortages. Why: kubelet's eviction-pressure-transition-period is longer still
# Why: while memory comes back there is a round each 10 ms, and leads are some seconds.
EVERY_NS = 100 * NS_PER_MS
_EARLY_NS = 5 * NS_PER_MS


# One configuration's evictions beside those of the acting one, kubelet's threshold and OOM kills. Pure.
#
# `week.DEFINITIONS` has a sentence for each count; five minutes after an eviction it is known whether it was needless.


class Happened(msgspec.Struct, frozen=True):
    """What became of the real node since the round before.

    `acting`  uids that the acting configuration evicted now, or would have; each once in five minutes.
    `really`  uids that were really evicted.
    """

    now_ns: int
    acting: tuple[str, ...] = ()
    really: frozenset[str] = frozenset()
    kubelet: int = 0
    oom_kills: int = 0


class _Sent(msgspec.Struct, frozen=True):
    at_ns: int
    uid: str
    is_matched: bool = False  # the other one evicted this pod too
    is_real: bool = False  # the pod really was evicted
    is_needed: bool = False  # kubelet's threshold or an OOM kill came after it


class Regret:
    """Compares one configuration; at most five minutes of evictions are remembered."""

    def __init__(self) -> None:
        self._own: list[_Sent] = []
        self._acting: list[_Sent] = []

    def observe(self, evictions: Sequence[Eviction], happened: Happened) -> ShadowCounts:
        """Return what is to be added for this round.

        OOM kills came before it; kubelet's threshold is looked at with the same measurement as the evictions.
        """
        now_ns = happened.now_ns
        counts = ShadowCounts()
        for _ in range(happened.oom_kills):
            counts = self._event(counts, now_ns, "over_oom")
        counts = replace(counts, evictions=len(evictions), freed_bytes=sum(each.freed_bytes for each in evictions))
        self._own += [_Sent(each.at_ns, each.uid) for each in evictions]
        self._acting += [_Sent(now_ns, uid) for uid in happened.acting]
        counts = self._match(counts)
        if happened.really:
            self._own = [replace(each, is_real=True) if each.uid in happened.really else each for each in self._own]
        for _ in range(happened.kubelet):
            counts = self._event(counts, now_ns, "over_kubelet")
        return self._expire(counts, now_ns)

    def _match(self, counts: ShadowCounts) -> ShadowCounts:
        theirs = {each.uid: place for place, each in enumerate(self._acting) if not each.is_matched}
        for place, own in enumerate(self._own):
            if not theirs:
                break
            if own.is_matched or (other := theirs.pop(own.uid, None)) is None:
                continue
            lead = Lead().with_one((self._acting[other].at_ns - own.at_ns) / NS_PER_S)
            counts = replace(counts, same=counts.same + 1, over_acting=counts.over_acting.with_all(lead))
            self._own[place] = replace(own, is_matched=True)
            self._acting[other] = replace(self._acting[other], is_matched=True)
        return counts

    def _event(self, counts: ShadowCounts, now_ns: int, over: str) -> ShadowCounts:
        if not self._own:
            return replace(counts, too_late=counts.too_late + 1)
        times_ns = sorted((each.at_ns for each in self._own), reverse=True)
        first_ns = times_ns[0]
        for at_ns in times_ns:
            if first_ns - at_ns > _APART_NS:
                break
            first_ns = at_ns
        self._own = [replace(each, is_needed=True) for each in self._own]
        lead = getattr(counts, over).with_one((now_ns - first_ns) / NS_PER_S)
        return replace(counts, in_time=counts.in_time + 1, **{over: lead})

    def _expire(self, counts: ShadowCounts, now_ns: int) -> ShadowCounts:
        if not (self._own or self._acting):
            return counts
        own = [each for each in self._own if now_ns - each.at_ns >= _NEAR_NS]
        acting = [each for each in self._acting if now_ns - each.at_ns >= _NEAR_NS]
        if not (own or acting):
            return counts
        self._own = [each for each in self._own if each not in own]
        self._acting = [each for each in self._acting if each not in acting]
        needless = sum(not (each.is_real or each.is_needed) for each in own)
        avoided = sum(not each.is_matched for each in acting)
        return replace(counts, needless=counts.needless + needless, avoided=counts.avoided + avoided)


class ActingEvictions:
    """The acting configuration's evictions, each pod once in five minutes: a dry run names one each few seconds."""

    def __init__(self) -> None:
        self._at_ns: dict[str, int] = {}

    def new(self, uids: Collection[str], now_ns: int) -> tuple[str, ...]:
        """Return those that were not there within the last five minutes."""
        self._at_ns = {uid: at for uid, at in self._at_ns.items() if now_ns - at < _NEAR_NS}
        found = tuple(uid for uid in uids if uid not in self._at_ns)
        self._at_ns |= dict.fromkeys(found, now_ns)
        return found


class KubeletThreshold:
    """kubelet's own hard eviction threshold for memory.available, on the same measurements.

    Of a node cgroup the available memory is the limit less usage without inactive page cache, as kubelet counts it. Of
    a machine it is MemAvailable, which is more: kubelet counts active page cache as used, and may be earlier.
    Source:  kubernetes pkg/kubelet/eviction, signal memory.available.

    Args:
        hard_bytes: the threshold.
    """

    def __init__(self, hard_bytes: int) -> None:
        self._hard_bytes = hard_bytes
        self._below_ns: int | None = None  # when it was last below

    def crossed(self, now_ns: int, node: NodeMeasure) -> bool:
        """Tell whether the node came to have less available than the threshold, a minute or more after the last."""
        available = available_bytes(node)
        if available is None or available >= self._hard_bytes:
            return False
        last_ns, self._below_ns = self._below_ns, now_ns
        return last_ns is None or now_ns - last_ns >= _APART_NS


def available_bytes(node: NodeMeasure) -> int | None:
    """Return memory.available as near to kubelet's as the measurement allows; None: not known."""
    if node.scope == "cgroup" and (memory := node.memory) is not None:
        return node.total_bytes - max(memory.usage_bytes - memory.inactive_file_bytes, 0)
    return None if node.used_bytes is None else node.total_bytes - node.used_bytes


class _Shadow:
    # One configuration.
    def __init__(self, variant: Variant, lifetimes: Lifetimes) -> None:
        self.variant = variant
        self.world = World(lifetimes=lifetimes)
        self.regret = Regret()
        self.counts = ShadowCounts()
        self.problem: str | None = None

    def observe(self, seen: Observed, happened: Happened, facts: Sequence[PodFacts]) -> None:
        tick = self.variant.applied(seen.tick)
        step = self.world.step(seen, tick, facts)
        found = self.regret.observe(step.evictions, happened)
        passed_s = seen.passed_ns / NS_PER_S
        found = replace(found, above_s=passed_s * step.is_above, apart_s=passed_s * step.is_apart)
        self.counts = self.counts.with_all(found)
        strategy = strategy_of_frame(tick.frame)
        self.problem = "no strategy is known" if strategy is None else memory_evict_problem(strategy)


class Shadows:
    """All configurations of one agent.

    Args:
        variants: the configurations.
        kubelet_hard_bytes: kubelet's hard threshold of memory.available.
    """

    def __init__(self, variants: Sequence[Variant], kubelet_hard_bytes: int) -> None:
        self._lifetimes = Lifetimes()
        self._shadows = [_Shadow(each, self._lifetimes) for each in variants]
        self._observer = Observer()
        self._acting = ActingEvictions()
        self._kubelet = KubeletThreshold(kubelet_hard_bytes)
        self._pods: object = None
        self._facts: Sequence[PodFacts] = ()
        self._waiting: dict[str, None] = {}  # what the acting configuration evicted since the last look
        self._oom_kills = 0
        self._due_ns = 0
        self._node = NodeCounts()

    def observe(self, tick: TickFrame, view: NodeView, decision: TickDecision) -> None:
        """Take one round of the agent, as it was decided; of rounds within 100 ms only what was evicted counts.

        Raises:  ConfigError: what is in force cannot be used with a configuration's settings.
        """
        if decision.carried is not None:
            self._waiting |= dict.fromkeys(each.candidate.uid for each in decision.carried.screening.allowed)
        now_ns = view.now_ns
        if 0 < self._due_ns - now_ns <= EVERY_NS:
            return
        self._due_ns = now_ns + EVERY_NS - _EARLY_NS
        if tick.frame.pods is not self._pods:
            self._facts, self._pods = facts_of_pods(tick.frame.pods), tick.frame.pods
        seen = self._observer.observe(tick, view)
        self._lifetimes.observe(now_ns, seen.pods.keys(), {each.uid for each in tick.frame.evictions})
        happened = Happened(
            now_ns=now_ns,
            acting=self._acting.new(tuple(self._waiting), now_ns),
            really=frozenset(pod.uid for pod, _ in seen.evicted),
            kubelet=int(self._kubelet.crossed(now_ns, view.measured.node)),
            oom_kills=self._oom_kills,
        )
        self._waiting, self._oom_kills = {}, 0
        self._count(seen, happened)
        for shadow in self._shadows:
            shadow.observe(seen, happened, self._facts)

    def oom_killed(self) -> None:
        """Take note of an OOM kill for the node's memory; it counts with the next round."""
        self._oom_kills += 1

    def released_after(self, release_ns: int) -> None:
        """Take note of how long evicted pods take to release their memory."""
        for shadow in self._shadows:
            shadow.world.release_ns = release_ns

    @property
    def problems(self) -> dict[str, str]:
        """Why a configuration has no memory threshold in force, by name."""
        return {each.variant.name: each.problem for each in self._shadows if each.problem is not None}

    def drain(self, day: str) -> ShadowDay:
        """Return what was counted since the last time."""
        found = self.counted(day)
        self._node = NodeCounts()
        for each in self._shadows:
            each.counts = ShadowCounts()
        return found

    def counted(self, day: str) -> ShadowDay:
        """Return the same, and count on."""
        return ShadowDay(day=day, node=self._node, shadows={each.variant.name: each.counts for each in self._shadows})

    def _count(self, seen: Observed, happened: Happened) -> None:
        view, passed_s = seen.view, seen.passed_ns / NS_PER_S
        threshold = threshold_bytes(view.strategy, view.capacity_bytes)
        is_above = threshold is not None and view.used_bytes is not None and view.used_bytes >= threshold
        now = NodeCounts(
            watched_s=passed_s,
            rounds=1,
            evictions=len(happened.acting),
            really=len(happened.really),
            above_s=passed_s * is_above,
            kubelet=happened.kubelet,
            oom_kills=happened.oom_kills,
        )
        self._node = self._node.with_all(now)
