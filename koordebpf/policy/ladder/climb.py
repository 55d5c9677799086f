"""The ladder of milder actions before an eviction: each rung is judged by its measured effect before the next.

Decides; the executor of a step hands its state in with the next view.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.ladder.rungs import kill_plan
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import Plan, RungPlan
from koordebpf.state.amount import MEMORY, USED
from koordebpf.state.stalls.ledger import is_latency_sensitive
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import format_bytes, format_ns

_ORDER = tuple(Rung)
_REVERSIBLE = frozenset({Rung.BRAKE, Rung.FREEZE})
_REPEATED = frozenset({Rung.EVICT, Rung.KILL})  # as long as the plan has victims


class RungInForce(msgspec.Struct, frozen=True):
    """A rung that was started and not undone, with the pods it holds."""

    plan: RungPlan
    since_ns: int


class LadderState(msgspec.Struct, frozen=True):
    """How far up the ladder a shortage has come, and how the node was when its last rung started.

    Empty: on the ground. Bytes and nanoseconds as in the view.
    """

    in_force: tuple[RungInForce, ...] = ()  # lowest first
    rung: Rung | None = None  # the last one that started; it may be undone already
    since_ns: int = 0  # it is judged by what happened from here on
    used_bytes: int = 0
    need_bytes: int = 0
    stalled_ns: int = 0  # of latency-sensitive pods, in the window of their stalls
    calm_since_ns: int | None = None  # None: there is a shortage
    evicted: tuple[str, ...] = ()  # uids that the rung `evict` evicted; those that stay are killed


class Effect(msgspec.Struct, frozen=True):
    """What a rung has brought so far. `stall_fall_ratio` None: no pod stalled when it started."""

    freed_bytes: int
    stall_fall_ratio: float | None


class LadderStep(msgspec.Struct, frozen=True):
    """What to do now: `undo` first, then `begin`; neither: wait. `state` holds once that is done."""

    kind: Literal["ground", "begin", "wait", "undo", "top"]
    sentence: str
    state: LadderState
    begin: RungPlan | None = None
    undo: tuple[RungInForce, ...] = ()
    effect: Effect | None = None


def next_rung(view: NodeView, plan: Plan, state: LadderState, settings: LadderSettings) -> LadderStep:
    """Return the next step of the ladder for this view and the plan that was made of it.

    The rungs that are configured are climbed in their fixed order, one at a time, those that would do nothing left out.
    A rung is judged `settle_ns` after it started: it has helped if the node's use fell by `enough_ratio` of the need,
    or if latency-sensitive pods stall less by `stall_fall_ratio` and use did not rise; then it is given as long again.
    Eviction is the plan's own: it starts as long as the plan has victims, no pod is frozen any more, and what holds
    its memory `kill_wait_ns` after its eviction is killed. When the shortage has been over for `calm_ns`, all that
    can be undone is undone, the last first; a shortage of CPU without victims is none.
    """
    if not _is_short(plan, state):
        return _calm(view, state, settings)
    state = replace(state, calm_since_ns=None)
    thawed = _overdue_freeze(view, state, settings)
    if thawed:
        state = replace(state, in_force=tuple(each for each in state.in_force if each not in thawed))
    if state.rung is None:
        return _climb(view, plan, state, thawed, None)
    if not any(feature.verdict.fires for feature in plan.features):
        sentence = f"{state.rung.value} is judged when the stalls have lasted"
        return LadderStep("undo" if thawed else "wait", sentence, state, undo=thawed)
    effect = _effect(view, state)
    if state.rung in _REPEATED:
        return _again(view, plan, state, settings, thawed, effect)
    left_ns = state.since_ns + settings.settle_ns - view.now_ns
    if left_ns > 0:
        kind: Literal["undo", "wait"] = "undo" if thawed else "wait"
        return LadderStep(kind, f"{state.rung.value} is judged in {format_ns(left_ns)}", state, None, thawed, effect)
    if _has_helped(plan, state, effect, settings):
        sentence = f"{state.rung.value} helps: {_said(effect)}"
        return LadderStep("undo" if thawed else "wait", sentence, _from_here(view, state, plan), None, thawed, effect)
    return _climb(view, plan, state, thawed, effect)


# The rungs below eviction are for memory: a shortage of CPU without victims keeps none of them.
def _is_short(plan: Plan, state: LadderState) -> bool:
    firing = [feature for feature in plan.features if feature.verdict.fires]
    if state.rung in _REPEATED:
        return bool(firing)
    return any(feature.verdict.is_for(MEMORY) or feature.victims for feature in firing) or (
        state.rung is not None and _are_stalls_watched(plan)
    )


# Stalls above their line that have not lasted: a rung restarted their window, and they say what it has brought.
def _are_stalls_watched(plan: Plan) -> bool:
    found = [feature.verdict for feature in plan.features if feature.verdict.stall is not None]
    return any(not each.fires and each.stall is not None and each.stall.above_s is not None for each in found)


def _calm(view: NodeView, state: LadderState, settings: LadderSettings) -> LadderStep:
    if state == LadderState():
        return LadderStep("ground", "no rung is in force", state)
    since_ns = view.now_ns if state.calm_since_ns is None else state.calm_since_ns
    state = replace(state, calm_since_ns=since_ns)
    left_ns = since_ns + settings.calm_ns - view.now_ns
    thawed = _overdue_freeze(view, state, settings)
    if left_ns > 0:
        state = replace(state, in_force=tuple(each for each in state.in_force if each not in thawed))
        kind: Literal["undo", "wait"] = "undo" if thawed else "wait"
        return LadderStep(kind, f"the shortage is over; all is undone in {format_ns(left_ns)}", state, undo=thawed)
    undo = tuple(reversed(state.in_force))
    names = ", ".join(each.plan.rung.value for each in undo) or "nothing"
    return LadderStep("undo", f"the shortage is over: undone is {names}", LadderState(), undo=undo)


# Killed by the plan's own victims or by those of the rung before it.
def _again(
    view: NodeView,
    plan: Plan,
    state: LadderState,
    settings: LadderSettings,
    undo: tuple[RungInForce, ...],
    effect: Effect,
) -> LadderStep:
    overdue = _overdue(view, state, settings)
    if overdue and Rung.KILL in settings.rungs:
        kill = kill_plan(overdue, [credit_bytes(pod) for pod in overdue], settings)
        killed = {pod.uid for pod in overdue}
        state = replace(state, evicted=tuple(uid for uid in state.evicted if uid not in killed))
        text = f"{kill.text}; it was evicted {format_ns(settings.kill_wait_ns)} ago or longer"
        return LadderStep("begin", text, state, kill, undo, effect)
    rung = _of(plan, state.rung) if state.rung is not None and plan.victims else None
    if rung is not None:
        return _begin(view, plan, state, undo, effect, rung)
    return LadderStep("undo" if undo else "wait", "the end of evicted pods is awaited", state, None, undo, effect)


def _overdue(view: NodeView, state: LadderState, settings: LadderSettings) -> list[PodView]:
    pending = {each.uid: each.since_ns for each in view.frame.pending if each.uid in state.evicted}
    return [
        pod
        for pod in view.pods
        if pod.uid in pending and pod.cgroup_id is not None and view.now_ns - pending[pod.uid] >= settings.kill_wait_ns
    ]


# What was climbed is not climbed again before the ground: a freeze that was thawed would follow itself for ever.
def _climb(
    view: NodeView, plan: Plan, state: LadderState, undo: tuple[RungInForce, ...], effect: Effect | None
) -> LadderStep:
    reached = -1 if state.rung is None else _ORDER.index(state.rung)
    for rung in _ORDER[reached + 1 :]:
        found = _of(plan, rung)
        if found is not None and found.is_on and found.actions:
            return _begin(view, plan, state, undo, effect, found)
    sentence = "no rung is left" if state.rung is not None else "no rung would do anything"
    return LadderStep("undo" if undo else "top", sentence, state, None, undo, effect)


def _begin(
    view: NodeView,
    plan: Plan,
    state: LadderState,
    undo: tuple[RungInForce, ...],
    effect: Effect | None,
    rung: RungPlan,
) -> LadderStep:
    before = ""
    if effect is not None and state.rung is not None and state.rung is not rung.rung:
        before = f"{state.rung.value} was not enough ({_said(effect)}): "
    in_force = state.in_force
    if rung.rung in _REPEATED:
        # cgroup v1: a frozen task gets no signal, SIGKILL included, before it is thawed.
        frozen = tuple(each for each in in_force if each.plan.rung is Rung.FREEZE)
        undo, in_force = (*undo, *frozen), tuple(each for each in in_force if each not in frozen)
    if rung.rung in _REVERSIBLE:
        in_force = (*in_force, RungInForce(rung, view.now_ns))
    victims = tuple(each.uid for each in rung.actions) if rung.rung is Rung.EVICT else ()
    evicted = (*(uid for uid in state.evicted if uid not in victims), *victims)
    started = replace(_from_here(view, state, plan), rung=rung.rung, in_force=in_force, evicted=evicted)
    return LadderStep("begin", f"{before}{rung.text}", started, rung, undo, effect)


def _of(plan: Plan, rung: Rung) -> RungPlan | None:
    return next((each for each in plan.ladder if each.rung is rung), None)


def _from_here(view: NodeView, state: LadderState, plan: Plan) -> LadderState:
    need = max((feature.verdict.amounts.get(USED, 0) for feature in plan.features), default=0)
    return replace(
        state,
        since_ns=view.now_ns,
        used_bytes=view.known_used_bytes,
        need_bytes=need,
        stalled_ns=_stalled_ns(view),
    )


def _overdue_freeze(view: NodeView, state: LadderState, settings: LadderSettings) -> tuple[RungInForce, ...]:
    return tuple(
        each
        for each in state.in_force
        if each.plan.rung is Rung.FREEZE and view.now_ns - each.since_ns >= settings.freeze_max_ns
    )


def _effect(view: NodeView, state: LadderState) -> Effect:
    fall = 1 - _stalled_ns(view) / state.stalled_ns if state.stalled_ns else None
    return Effect(freed_bytes=state.used_bytes - view.known_used_bytes, stall_fall_ratio=fall)


# Stalls below the threshold do not say how many bytes are short.
def _has_helped(plan: Plan, state: LadderState, effect: Effect, settings: LadderSettings) -> bool:
    is_by_bytes = any(feature.verdict.fires and feature.verdict.stall is None for feature in plan.features)
    if is_by_bytes and effect.freed_bytes >= settings.enough_ratio * state.need_bytes:
        return True
    fall = effect.stall_fall_ratio
    return fall is not None and fall >= settings.stall_fall_ratio and effect.freed_bytes >= 0


# For the node's shortage only: at its own limit a pod stalls for itself.
def _stalled_ns(view: NodeView) -> int:
    stalls = [pod.stall for pod in view.pods if pod.stall is not None and is_latency_sensitive(pod)]
    return sum(each.global_ns + each.other_global_ns for each in stalls)


def _said(effect: Effect) -> str:
    freed = effect.freed_bytes
    use = f"use fell by {format_bytes(freed)}" if freed >= 0 else f"use rose by {format_bytes(-freed)}"
    if effect.stall_fall_ratio is None:
        return use
    fall = effect.stall_fall_ratio
    return f"{use}, stalls {'fell' if fall >= 0 else 'rose'} by {abs(fall):.0%}"
