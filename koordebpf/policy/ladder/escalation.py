"""What of a plan the escalation ladder lets through now: its rungs come between the decision and the eviction. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec
from msgspec.structs import replace

from koordebpf.policy.ladder.climb import LadderState, LadderStep, next_rung
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import Plan, RungPlan, Victim
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.view import NodeView

ENDS = frozenset({Rung.EVICT, Rung.KILL})


class EvictedByRung(msgspec.Struct, frozen=True):
    """A victim that the rung `evict` evicted: the rung `kill` needs it when the plan names it no more."""

    feature: str
    victim: Victim


class LadderMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the ladder is, the pods it evicted, and the rungs that were found impossible in this shortage."""

    state: LadderState = LadderState()
    evicted: tuple[EvictedByRung, ...] = ()
    impossible: frozenset[Rung] = frozenset()

    def without(self, rung: Rung) -> LadderMemory:
        """Return it after a rung could not be carried out here."""
        return replace(self, impossible=self.impossible | {rung})

    def thawed(self) -> LadderMemory:
        """Return it after a freeze was ended before the ladder asked for it."""
        in_force = tuple(each for each in self.state.in_force if each.plan.rung is not Rung.FREEZE)
        return replace(self, state=replace(self.state, in_force=in_force))


class Escalation(msgspec.Struct, frozen=True):
    """What is to be carried out of a plan. `memory` holds once `step` is done; no step: a guard is closed."""

    plan: Plan
    guards: tuple[ClosedGuard, ...]  # which hold its victims back; a milder rung is one
    memory: LadderMemory
    step: LadderStep | None = None
    by: Literal["evict", "kill"] = "evict"


def escalate(
    view: NodeView,
    plan: Plan,
    guards: tuple[ClosedGuard, ...],
    memory: LadderMemory,
    settings: LadderSettings,
    spared: Collection[str] = (),
) -> Escalation:
    """Return the ladder's next step for a plan, and what of the plan is carried out meanwhile.

    The victims are held back as by a guard while a milder rung is tried. With a guard closed no rung is started, and
    what is in force stays.

    Args:
        view: the node.
        plan: of this view.
        guards: that are closed.
        memory: as the last step left it.
        settings: which rungs, and when one has done enough.
        spared: UIDs that no rung does anything to, whatever the plan says.
    """
    is_short = any(feature.verdict.fires for feature in plan.features)
    if guards and is_short:
        return Escalation(plan, guards, memory)
    step = next_rung(view, _possible(plan, memory, spared), memory.state, settings)
    started, memory = step.begin, replace(memory, state=step.state)
    if not is_short and memory.state == LadderState():
        memory = replace(memory, impossible=frozenset())
    if started is not None and started.rung is Rung.KILL:
        return Escalation(_killing(plan, started, memory, step.sentence), guards, memory, step, by="kill")
    if started is not None and started.rung is Rung.EVICT:
        return Escalation(plan, guards, replace(memory, evicted=_evicted(plan, memory)), step)
    return Escalation(plan, (*guards, _held(step, settings)), memory, step)


def _held(step: LadderStep, settings: LadderSettings) -> ClosedGuard:
    rung, sentence = step.state.rung, step.sentence
    if rung is None and not settings.rungs & ENDS:
        return ClosedGuard("ladder", f"eviction is no rung of the ladder: {sentence}")
    is_tried = rung is not None and rung not in ENDS
    return ClosedGuard("ladder", f"{rung.value} is tried first" if rung and is_tried else sentence)


# The plan without what was found impossible in this shortage, and without pods that nothing may be done to.
def _possible(plan: Plan, memory: LadderMemory, spared: Collection[str]) -> Plan:
    return replace(
        plan,
        ladder=tuple(
            replace(rung, actions=tuple(action for action in rung.actions if action.uid not in spared))
            for rung in plan.ladder
            if rung.rung not in memory.impossible
        ),
    )


# The pods that are to be killed as the plan's victims: some of them left it when they were evicted.
def _killing(plan: Plan, rung: RungPlan, memory: LadderMemory, sentence: str) -> Plan:
    known = {each.victim.candidate.uid: each for each in (*memory.evicted, *_victims(plan))}
    wanted = {action.uid: known[action.uid] for action in rung.actions if action.uid in known}
    return replace(
        plan,
        sentence=sentence,
        features=tuple(
            replace(
                feature,
                victims=tuple(each.victim for each in wanted.values() if each.feature == feature.verdict.feature),
            )
            for feature in plan.features
        ),
    )


def _evicted(plan: Plan, memory: LadderMemory) -> tuple[EvictedByRung, ...]:
    new = _victims(plan)
    uids = {each.victim.candidate.uid for each in new}
    kept = (each for each in memory.evicted if each.victim.candidate.uid in memory.state.evicted)
    return (*(each for each in kept if each.victim.candidate.uid not in uids), *new)


def _victims(plan: Plan) -> tuple[EvictedByRung, ...]:
    return tuple(
        EvictedByRung(feature.verdict.feature, victim) for feature in plan.features for victim in feature.victims
    )
