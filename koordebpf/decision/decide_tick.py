"""One round of an agent: its frame, with everything it decides from, to everything that is to be done. Pure.

`plan` and a replay decide by the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from koordebpf.decision.strategies import StrategySettings, decide_strategies
from koordebpf.policy.decide import arbitrate, decide
from koordebpf.policy.detect import be_memory_evict
from koordebpf.policy.evict.all_features import RESOURCE_OF
from koordebpf.policy.evict.pending import EvictedPods, overdue_plan
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import (
    EmergencySettings,
    GuardLimits,
    Screening,
    UseGuard,
    closed_guards,
    emergency,
    screen,
    unexplained_memory,
    victim_guard,
    without_stale,
)
from koordebpf.policy.ladder.climb import LadderStep
from koordebpf.policy.ladder.escalation import LadderMemory, escalate
from koordebpf.policy.plan import Plan
from koordebpf.policy.strategy import Decision
from koordebpf.state.build import view_of_frame
from koordebpf.state.decision_memory import Budget
from koordebpf.state.guard_facts import ClosedGuard, GuardFacts
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.namespaces import judged
from koordebpf.state.view import Frame, NodeView

By = Literal["evict", "kill", "overdue", "emergency"]  # who carries a plan out


class TickSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent's settings that a round reads. `kill_after_ns` None: a pod that is overdue is not killed."""

    eviction: EvictSettings = EvictSettings()
    strategies: StrategySettings = StrategySettings()
    guards: GuardLimits = GuardLimits()
    emergency: EmergencySettings = EmergencySettings()
    kill_after_ns: int | None = None


class TickFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One round of an agent, before it decides. `frame` alone is what `koordebpf plan` decides from.

    `is_round_due`   a shortage may be acted on now; else it is only judged.
    `has_cpu`        the CPUs were measured, and pods and Node are known: strategies that need them are asked.
    `evicted`        pods that are killed when they are overdue.
    `ladder`         None: there is no ladder.
    `states`         what each strategy remembers, by name.
    `listed_cgroups` cgroup of each pod, by UID, as of the last good list of pods, while the API server is lost; None:
                     it is not, or nothing is done without it.
    """

    schema: Literal["koordebpf.tick/v1"] = "koordebpf.tick/v1"
    frame: Frame
    settings: TickSettings
    guards: GuardFacts
    is_round_due: bool = True
    has_cpu: bool = False
    evicted: EvictedPods = EvictedPods()
    ladder: LadderMemory | None = None
    states: dict[str, Any] = {}
    listed_cgroups: dict[str, int | None] | None = None


class CarriedOut(msgspec.Struct, frozen=True):
    """What is carried out of a plan now: the victims that no guard holds back, and their executor."""

    plan: Plan
    screening: Screening
    guards: tuple[ClosedGuard, ...]  # of the node; the ladder's rung that is tried first is one
    by: By = "evict"


class TickDecision(msgspec.Struct, frozen=True):
    """The decision of one round.

    `plan`     of this moment, before anything is held back.
    `guards`   that are closed, and `holding` those of them that forbid acting now: in an emergency not all, and none
               that lets some victims pass.
    `carried`  what is carried out; None: nothing is, or it is not time yet.
    `step`     of the ladder; None: it waits for a guard to open.
    `ladder`   its memory once the step is done; None: there is no ladder, or it is not asked now.
    `strategies` the decision of each strategy that was asked, by name, but for the features that evict: their verdicts,
               and what the others demand, are in the plan.
    """

    plan: Plan
    guards: tuple[ClosedGuard, ...]
    holding: tuple[ClosedGuard, ...]
    carried: CarriedOut | None = None
    step: LadderStep | None = None
    ladder: LadderMemory | None = None
    strategies: dict[str, Decision[Any]] = {}

    @property
    def is_short(self) -> bool:
        """Whether any feature asks for an eviction."""
        return any(feature.verdict.fires for feature in self.plan.features)


def encode_decision(decision: TickDecision) -> bytes:
    """Return what one round decided as JSON; equal decisions give equal bytes."""
    return msgspec.json.encode(decision, order="deterministic")


def tick_view(tick: TickFrame, facts: Sequence[PodFacts] | None = None) -> NodeView:
    """Return the node as this round sees it; `facts` as in `view_of_frame`.

    Raises:  ConfigError: a NodeSLO, ConfigMap or quantity in the frame is unusable.
    """
    return _view(tick.frame, tick, facts)


def decide_tick(tick: TickFrame, view: NodeView, facts: Sequence[PodFacts] | None = None) -> TickDecision:
    """Return everything that this round does. The same frame gives the same decision, bit for bit.

    Args:
        tick: the round's frame.
        view: `tick_view` of it.
        facts: as in `view_of_frame`.
    """
    settings = tick.settings
    decisions = decide_strategies(view, tick.states, settings, has_cpu=tick.has_cpu)
    lost = _lost_sentence(tick)
    if lost:
        plan = decide(_without_server(tick, facts), settings.eviction)
    else:
        plan = arbitrate(view, settings.eviction, [each for made in decisions.values() for each in made.demands])
    guards = closed_guards(tick.guards, settings.guards)
    holding = without_stale(guards) if lost else guards
    use_guard = unexplained_memory(view, plan, settings.guards, strict=settings.eviction.strict_compat)
    kept = {
        name: replace(made, demands=()) if made.demands else made
        for name, made in decisions.items()
        if name not in RESOURCE_OF
    }
    shown = guards if use_guard is None else (*guards, use_guard.guard)
    decision = TickDecision(plan, shown, holding, strategies=kept)
    if decision.is_short and tick.is_round_due:
        if lost:
            plan = replace(plan, sentence=f"{lost}: {plan.sentence}")
            decision = replace(decision, carried=_screened(tick, plan, holding, "emergency", use_guard))
        elif late := _overdue(tick, view, plan):
            decision = replace(decision, carried=_screened(tick, late, guards, "overdue"))
        elif tick.ladder is None:
            decision = replace(decision, carried=_screened(tick, plan, guards, "evict", use_guard))
        else:
            decision = _climbed(tick, view, decision, guards, use_guard)
    elif tick.ladder is not None and not decision.is_short:
        decision = replace(_climbed(tick, view, decision, guards, use_guard), carried=None)
    return decision


def decided_again(tick: TickFrame) -> TickDecision:
    """Return the decision of a recorded round.

    Raises:  ConfigError: a NodeSLO, ConfigMap or quantity in the frame is unusable.
    """
    return decide_tick(tick, tick_view(tick))


def _lost_sentence(tick: TickFrame) -> str | None:
    if tick.listed_cgroups is None or tick.guards.pods_synced_ns is None:
        return None
    return emergency(tick.frame.measured.now_ns - tick.guards.pods_synced_ns, tick.settings.emergency)


def _view(frame: Frame, tick: TickFrame, facts: Sequence[PodFacts] | None) -> NodeView:
    eviction = tick.settings.eviction
    return judged(view_of_frame(frame, strict=eviction.strict_compat, facts=facts), eviction.exemptions)


# The node as a decision without the API server may see it: for a kill by cgroup, by BEMemoryEvict alone. The pods are
# those that still are the ones of the last good list, the same UID in the same cgroup. It was the API server that
# refused evictions, so no pod counts as refused.
def _without_server(tick: TickFrame, facts: Sequence[PodFacts] | None) -> NodeView:
    cgroups = tick.listed_cgroups or {}
    be = be_memory_evict.FEATURE
    gates = {name: is_on and name == be for name, is_on in tick.frame.featureGates.items()}
    view = _view(replace(tick.frame, featureGates=gates, executor="cgroup", refused=()), tick, facts)
    same = (pod for pod in view.pods if pod.cgroup_id is not None and cgroups.get(pod.uid) == pod.cgroup_id)
    return replace(view, pods=tuple(same))


def _overdue(tick: TickFrame, view: NodeView, plan: Plan) -> Plan | None:
    settings = tick.settings
    if settings.kill_after_ns is None:
        return None
    return overdue_plan(
        view, plan, tick.evicted, kill_after_ns=settings.kill_after_ns, pending_max_ns=settings.eviction.pending_max_ns
    )


def _climbed(
    tick: TickFrame,
    view: NodeView,
    decision: TickDecision,
    guards: tuple[ClosedGuard, ...],
    use_guard: UseGuard | None,
) -> TickDecision:
    plan, own_uid = decision.plan, tick.frame.ownPodUid
    # The decision has passed over such pods already; they are looked for once more before anything is done to them.
    spared = {each.candidate.uid for each in plan.victims if victim_guard(each, own_pod_uid=own_uid) is not None}
    guards = _with_use_guard(guards, use_guard, plan)  # no rung is started for those that stay
    found = escalate(view, plan, guards, tick.ladder or LadderMemory(), tick.settings.eviction.ladder, spared)
    carried = _screened(tick, found.plan, found.guards, found.by, use_guard)
    return replace(decision, carried=carried, step=found.step, ladder=found.memory)


# A guard that lets no victim of the plan pass is as any other.
def _with_use_guard(guards: tuple[ClosedGuard, ...], use_guard: UseGuard | None, plan: Plan) -> tuple[ClosedGuard, ...]:
    if use_guard is None or use_guard.guard in guards or any(map(use_guard.lets_pass, plan.victims)):
        return guards
    return (*guards, use_guard.guard)


def _screened(
    tick: TickFrame, plan: Plan, guards: tuple[ClosedGuard, ...], by: By, use_guard: UseGuard | None = None
) -> CarriedOut:
    guards = _with_use_guard(guards, use_guard, plan)
    screening = screen(
        plan.victims,
        guards,
        Budget(tick.frame.evictions),
        tick.settings.guards,
        now_ns=tick.frame.measured.now_ns,
        own_pod_uid=tick.frame.ownPodUid,
        use_guard=use_guard,
    )
    return CarriedOut(plan, screening, guards, by)
