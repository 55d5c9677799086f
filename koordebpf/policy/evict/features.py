"""The features that evict for memory, in Koordinator's fixed order, and what every feature is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from koordebpf.policy.credit import credit_bytes, koordinator_credit_bytes
from koordebpf.policy.detect import be_memory_evict, memory_allocatable_evict, memory_evict, stall_evict
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.by_feature import (
    candidates_by_priority,
    candidates_of,
    priority_key,
    priority_order,
)
from koordebpf.policy.evict.disruption import ALLOWED
from koordebpf.policy.evict.exemptions import exclusion
from koordebpf.policy.evict.ranking import as_candidates, be_key, be_order, preferred
from koordebpf.policy.evict.resources import MEMORY_RELIEF, Relief
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate
from koordebpf.policy.strategy import Decision, Demand, Empty, Ranking, Strategy
from koordebpf.slo.strategies.resource_threshold import allocatable_priority
from koordebpf.state.stalls.ledger import largest_cause_ns
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import format_ns


class Feature(Strategy[None, Empty, EvictSettings]):
    """One of the features that evict: its condition, and which pods may be evicted for it in which order.

    Args:
        name: as in Koordinator; also its gate.
        relief: of the resource that it judges.
        judge: its condition.
        rank: the pods.
        whom: in sentences: "no <whom> can be evicted".
        is_on: its gate's default; a feature that is on by default says so in a plan where it is switched off.
    """

    settings = EvictSettings
    shared_section = "eviction"
    state = Empty
    is_one_by_one = False

    def __init__(
        self,
        name: str,
        relief: Relief,
        judge: Callable[[NodeView, EvictSettings], Verdict],
        rank: Callable[[Round], Ranking],
        whom: str,
        *,
        is_on: bool = False,
    ) -> None:
        self.name = self.gate = name
        self.summary = f"evict a {whom} for {relief.resource}"
        self.is_on = self.decides_when_off = is_on
        self.relief = relief
        self._judge = judge
        self._rank = rank
        self._whom = whom

    def decide(self, view: NodeView, measured: None, state: Empty, settings: EvictSettings) -> Decision[Empty]:
        """Return the demand that the condition makes, also where it does not hold: a plan says why not."""
        verdict = self._judge(view, settings)
        demand = Demand(verdict, self.relief, self._rank, self._whom, is_one_by_one=self.is_one_by_one)
        return Decision(state=state, reason=verdict.reason, skipped=verdict.skipped, demands=(demand,))


class OneByOne(Feature):
    """A feature of which is not known how much an eviction releases: one pod is evicted, and its effect awaited."""

    is_one_by_one = True


def _judge_be(view: NodeView, settings: EvictSettings) -> Verdict:
    return be_memory_evict.be_memory_evict(view, settings.act_ahead_ns, by_percent=settings.strict_compat)


def _judge_allocatable(view: NodeView, settings: EvictSettings) -> Verdict:
    return memory_allocatable_evict.memory_allocatable_evict(view, unless_written=settings.strict_compat)


def _judge_by_usage(view: NodeView, settings: EvictSettings) -> Verdict:
    return memory_evict.memory_evict(view, settings.act_ahead_ns, by_percent=settings.strict_compat)


def _judge_stalls(view: NodeView, settings: EvictSettings) -> Verdict:
    stall = settings.stall
    return stall_evict.stall_evict(view, stall.full_percent, stall.seconds, strict=settings.strict_compat)


def _rank_be(current: Round) -> Ranking:
    pods, excluded = candidates_of(current, be_memory_evict.FEATURE)
    size = _size(current)
    return _in_order(current, be_order(pods, size), be_key, size), excluded


def _rank_allocatable(current: Round) -> Ranking:
    strategy = current.view.strategy
    highest = allocatable_priority(strategy) if strategy else 0
    name = memory_allocatable_evict.FEATURE
    pods, excluded = candidates_by_priority(current, name, highest, needs_usage=current.settings.strict_compat)
    return _in_order(current, priority_order(pods, _request_bytes), priority_key, _request_bytes), excluded


def _rank_by_usage(current: Round) -> Ranking:
    strategy = current.view.strategy
    highest = (strategy.evictEnabledPriorityThreshold if strategy else None) or 0
    pods, excluded = candidates_by_priority(current, memory_evict.FEATURE, highest, needs_usage=True)
    size = _size(current)
    return _in_order(current, priority_order(pods, size), priority_key, size), excluded


# To evict a pod that is charged with less than half of the largest cause would not end the stalls.
def _rank_aggressors(current: Round) -> Ranking:
    pods, excluded = candidates_of(current, stall_evict.FEATURE)
    largest_ns, caused = largest_cause_ns(current.view.measured.ledger, current.view.pods), current.caused or {}
    least_ns = max(current.settings.aggressor_min_ns, largest_ns // 2, 1)
    why = f"less than {format_ns(least_ns)} of the stalls of latency-sensitive pods are on its account"
    found = [pod for pod in pods if caused.get(pod.uid, 0) >= least_ns]
    others = [exclusion(pod, ("no_aggressor", why)) for pod in pods if pod not in found]
    size = _size(current)
    return _in_order(current, be_order(found, size), be_key, size), (*excluded, *others)


# By what their end releases; Koordinator, by what it counts as used.
def _size(current: Round) -> Callable[[PodView], int]:
    return koordinator_credit_bytes if current.settings.strict_compat else credit_bytes


def _request_bytes(pod: PodView) -> int:
    return pod.terms.memory_request_bytes


def _in_order(
    current: Round, order: Sequence[PodView], key: Callable[[PodView], Hashable], size: Callable[[PodView], int]
) -> tuple[Candidate, ...]:
    view, settings, caused = current.view, current.settings, current.caused
    order = preferred(order, key, size, caused or {}, settings, current.victims)
    return as_candidates(
        order,
        current.reliefs,
        caused,
        as_koordinator=settings.strict_compat,
        disruption=None if view.frame.podDisruptionBudgets is None else ALLOWED,
    )


MEMORY_FEATURES = (
    Feature(be_memory_evict.FEATURE, MEMORY_RELIEF, _judge_be, _rank_be, "best-effort pod", is_on=True),
    Feature(
        memory_allocatable_evict.FEATURE,
        MEMORY_RELIEF,
        _judge_allocatable,
        _rank_allocatable,
        "pod in reach of the priority threshold",
    ),
    Feature(
        memory_evict.FEATURE, MEMORY_RELIEF, _judge_by_usage, _rank_by_usage, "pod in reach of the priority threshold"
    ),
    OneByOne(
        stall_evict.FEATURE,
        MEMORY_RELIEF,
        _judge_stalls,
        _rank_aggressors,
        "best-effort pod that makes latency-sensitive ones stall",
    ),
)
