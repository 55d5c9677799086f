"""A recording under several configurations at once: what each would have evicted, and how full its node would be. Pure.

Give it the rounds in order of time; `results` says what came of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, tick_view
from koordebpf.decision.what_if.observed import Lifetimes, Observed, Observer
from koordebpf.decision.what_if.variant import Variant
from koordebpf.decision.what_if.world import HELD_NS, RELEASE_NS, Eviction, Step, World
from koordebpf.policy.credit import credit_bytes
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.pods.facts import PodFacts, facts_of_pods

_MAX_LISTED = 1_000  # evictions with their names; more are only counted


class Expected(msgspec.Struct, frozen=True):
    """The stalls that a curve expects. `unseen_ns`: so much of the time was at a level that was never seen."""

    stall_ns: int
    unseen_ns: int


class StallCurve:
    """Time and stalls by whole percents of the node's use, in the interval that ends at each round."""

    def __init__(self) -> None:
        self._passed_ns: Counter[int] = Counter()
        self._stall_ns: Counter[int] = Counter()

    def add(self, percent: int, passed_ns: int, stall_ns: int) -> None:
        """Take one interval in which the node used `percent`."""
        self._passed_ns[percent] += passed_ns
        self._stall_ns[percent] += stall_ns

    def expected(self, passed_ns: Mapping[int, int]) -> Expected:
        """Return the stalls of a node that spent so long at each percent.

        At a level that was seen it stalls as much of the time as was seen; at another one as at the nearest level that
        was. The time that was recorded gives the stalls that were recorded.
        """
        seen = [percent for percent, time_ns in self._passed_ns.items() if time_ns]
        if not seen:
            return Expected(0, sum(passed_ns.values()))
        stall, unseen_ns = 0.0, 0
        for percent, time_ns in passed_ns.items():
            near = percent
            if not self._passed_ns.get(percent):
                near = min(seen, key=lambda each: (abs(each - percent), each))
                unseen_ns += time_ns
            stall += time_ns * self._stall_ns[near] / self._passed_ns[near]
        return Expected(round(stall), unseen_ns)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one configuration came to.

    `freed_bytes`  what evicted pods held when they were evicted.
    `above_ns`     the node's use was at or above memoryEvictThresholdPercent.
    `stall_ns`     latency-sensitive pods stalled for the node's memory, added up; None: stalls were not recorded.
    `unseen_ns`    so much of the time was at a use that the recording never saw: its stalls are those of the nearest.
    `apart_ns`     the node was not as recorded, so what really would have come of it is not known.
    `held_ns`      of that, pods counted that really were evicted, with what they were last seen to hold.
    `full_ns`      the node would have used more than it has: pods that were held would have been killed by the kernel.
    """

    name: str
    evictions: int = 0
    freed_bytes: int = 0
    above_ns: int = 0
    stall_ns: int | None = None
    unseen_ns: int = 0
    apart_ns: int = 0
    held_ns: int = 0
    full_ns: int = 0
    listed: tuple[Eviction, ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What really happened. `evictions` were sent, so in a dry run there are none. `passed_ns`: without gaps."""

    rounds: int = 0
    passed_ns: int = 0
    evictions: int = 0
    freed_bytes: int = 0
    above_ns: int = 0
    stall_ns: int | None = None
    has_ladder: bool = False
    acts_ahead: bool = False
    stalls_of_node: bool = False  # of any task: those of pods were not timed


class _Run:
    # One configuration on its way through the recording.
    def __init__(self, variant: Variant, world: World) -> None:
        self.variant = variant
        self.world = world
        self.outcome = Outcome(name=variant.name)
        self.at_percent: Counter[int] = Counter()

    def observe(self, seen: Observed, facts: Sequence[PodFacts]) -> None:
        step, passed_ns, was = (
            self.world.step(seen, self.variant.applied(seen.tick), facts),
            seen.passed_ns,
            self.outcome,
        )
        self.at_percent[_percent(step)] += passed_ns
        is_full = step.used_bytes is not None and step.used_bytes > step.capacity_bytes
        self.outcome = replace(
            was,
            evictions=was.evictions + len(step.evictions),
            freed_bytes=was.freed_bytes + sum(each.freed_bytes for each in step.evictions),
            above_ns=was.above_ns + passed_ns * step.is_above,
            apart_ns=was.apart_ns + passed_ns * step.is_apart,
            held_ns=was.held_ns + passed_ns * bool(step.held_bytes),
            full_ns=was.full_ns + passed_ns * is_full,
            listed=(was.listed + step.evictions)[:_MAX_LISTED] if step.evictions else was.listed,
        )


class Simulation:
    """Several configurations over the same rounds.

    Args:
        variants: the configurations.
        release_ns: from an eviction until its memory is back.
        held_ns: how long a pod counts with its last known usage at most.
        lifetimes: of the pods of this recording.
    """

    def __init__(
        self,
        variants: Sequence[Variant],
        release_ns: int = RELEASE_NS,
        held_ns: int = HELD_NS,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self._runs = [_Run(each, World(release_ns, held_ns, lifetimes)) for each in variants]
        self._observer = Observer()
        self._curve = StallCurve()
        self._pods: object = None
        self._facts: Sequence[PodFacts] = ()
        self.recorded = Recorded()

    def observe(self, tick: TickFrame) -> None:
        """Take one round.

        Raises:  ConfigError: a NodeSLO, ConfigMap or quantity in the frame, or a configuration's setting is unusable.
        """
        if tick.frame.pods is not self._pods:
            self._facts, self._pods = facts_of_pods(tick.frame.pods), tick.frame.pods
        seen = self._observer.observe(tick, tick_view(tick, self._facts))
        self._count(seen)
        for run in self._runs:
            run.observe(seen, self._facts)

    @property
    def results(self) -> tuple[Outcome, ...]:
        """What each configuration came to, in their order."""
        return tuple(self._with_stalls(run) for run in self._runs)

    def _with_stalls(self, run: _Run) -> Outcome:
        if self.recorded.stall_ns is None:
            return run.outcome
        expected = self._curve.expected(run.at_percent)
        return replace(run.outcome, stall_ns=expected.stall_ns, unseen_ns=expected.unseen_ns)

    def _count(self, seen: Observed) -> None:
        was, view, passed_ns, stall_ns = self.recorded, seen.view, seen.passed_ns, seen.stall_ns
        threshold = threshold_bytes(view.strategy, view.capacity_bytes)
        is_above = threshold is not None and view.used_bytes is not None and view.used_bytes >= threshold
        if stall_ns is not None:
            self._curve.add(_percent_of(view.used_bytes, view.capacity_bytes), passed_ns, stall_ns)
            stall_ns += was.stall_ns or 0
        self.recorded = Recorded(
            rounds=was.rounds + 1,
            passed_ns=was.passed_ns + passed_ns,
            evictions=was.evictions + len(seen.evicted),
            freed_bytes=was.freed_bytes + sum(credit_bytes(pod) for pod, _ in seen.evicted),
            above_ns=was.above_ns + passed_ns * is_above,
            stall_ns=was.stall_ns if stall_ns is None else stall_ns,
            has_ladder=was.has_ladder or seen.tick.ladder is not None,
            acts_ahead=was.acts_ahead or bool(seen.tick.settings.eviction.act_ahead_ns),
            stalls_of_node=was.stalls_of_node or view.measured.ledger is None,
        )


def _percent(step: Step) -> int:
    return _percent_of(step.used_bytes, step.capacity_bytes)


def _percent_of(used_bytes: int | None, capacity_bytes: int) -> int:
    return -1 if used_bytes is None or not capacity_bytes else used_bytes * 100 // capacity_bytes
