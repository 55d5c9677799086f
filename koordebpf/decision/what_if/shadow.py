"""Shadow mode: configurations judged on an agent's own rounds beside the one that acts. They never act. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickDecision
from koordebpf.decision.tick_frame import TickFrame
from koordebpf.decision.what_if.lifetimes import Lifetimes
from koordebpf.decision.what_if.observed import Observed, Observer
from koordebpf.decision.what_if.regret import ActingEvictions, Happened, KubeletThreshold, Regret
from koordebpf.decision.what_if.variant import Variant
from koordebpf.decision.what_if.week import NodeCounts, ShadowCounts, ShadowDay
from koordebpf.decision.what_if.world import World
from koordebpf.slo.strategies.threshold_bytes import threshold_bytes
from koordebpf.slo.strategies.threshold_rules import memory_evict_problem
from koordebpf.state.build import strategy_of_frame
from koordebpf.state.pods.facts import PodFacts, facts_of_pods
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_MS, NS_PER_S

# Why: while memory comes back there is a round each 10 ms, and leads are some seconds.
EVERY_NS = 100 * NS_PER_MS
_EARLY_NS = 5 * NS_PER_MS


class _Shadow:
    # One configuration.
    def __init__(self, variant: Variant, lifetimes: Lifetimes) -> None:
        self.variant = variant
        self.world = World(lifetimes=lifetimes)
        self.regret = Regret()
        self.counts = ShadowCounts()
        self.problem: str | None = None

    def look(self, seen: Observed, happened: Happened, facts: Sequence[PodFacts]) -> None:
        tick = self.variant.applied(seen.tick)
        step = self.world.step(seen, tick, facts)
        found = self.regret.look(step.evictions, happened)
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

    def look(self, tick: TickFrame, view: NodeView, decision: TickDecision) -> None:
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
        seen = self._observer.look(tick, view)
        self._lifetimes.look(now_ns, seen.pods.keys(), {each.uid for each in tick.frame.evictions})
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
            shadow.look(seen, happened, self._facts)

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

    def take(self, day: str) -> ShadowDay:
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
