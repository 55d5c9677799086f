"""The ladder, rung by rung: what is started, how it is judged, and what is undone."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.policy.decide import decide
from koordebpf.policy.detect.verdict import Need, Verdict
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.ladder.climb import LadderState, LadderStep, next_rung
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import Balance, FeaturePlan, Plan
from koordebpf.state.amount import BE_REQUESTED_CPU, CPU
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import StallParts
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, ls_pod, pod, supposed

ALL = LadderSettings(rungs=frozenset(Rung))
GROUND = LadderState()


def stall(seconds: float) -> StallParts:
    return StallParts(window_ns=10 * NS_PER_S, global_ns=int(seconds * NS_PER_S), limit_ns=0)


def node(used: int, *, at_s: float = 0, stalled_s: float = 0, anon: int = 300, growth: float | None = 1e6) -> NodeView:
    web = ls_pod("web", anon=50)
    measure = web.measure
    assert measure is not None
    web = replace(web, measure=replace(measure, stall=stall(stalled_s)))
    pods = [web, pod("hog", anon=anon, growth=growth), pod("idle", anon=20)]
    view = view_of_frame(frame(pods, used=used))
    return replace(view, now_ns=NOW_NS + int(at_s * NS_PER_S))


def step(view: NodeView, state: LadderState = GROUND, settings: LadderSettings = ALL) -> LadderStep:
    return next_rung(view, plan_for(view, settings), state, settings)


def plan_for(view: NodeView, settings: LadderSettings = ALL) -> Plan:
    return decide(view, EvictSettings(ladder=settings))


def started(taken: LadderStep) -> Rung | None:
    return taken.begin.rung if taken.begin is not None else None


def test_the_plan_shows_every_rung_configured_or_not():
    plan = plan_for(node(850), LadderSettings(rungs=frozenset({Rung.BRAKE})))
    assert [each.rung for each in plan.ladder] == list(Rung)
    assert [each.rung for each in plan.ladder if each.is_on] == [Rung.BRAKE]
    brake, reclaim, freeze, evict, kill = plan.ladder
    assert brake.actions[0].memory_high_bytes == 300 * MIB * 95 // 100
    assert brake.text == "memory.high holds spark/hog at 285 MiB; without one, 10 % of a CPU"
    assert reclaim.actions[0].reclaim_bytes == 70 * MIB
    assert freeze.undo == "thaw"
    assert (evict.gives_bytes, evict.undo) == (300 * MIB, None)
    assert [action.name for action in kill.actions] == ["hog"]


def test_without_rungs_the_victims_go_at_once_and_nothing_else_is_on():
    assert [each.rung for each in plan_for(node(850), LadderSettings()).ladder if each.is_on] == [Rung.EVICT]
    assert plan_for(node(700)).ladder == ()


def test_who_does_not_grow_is_neither_braked_nor_frozen():
    plan = plan_for(node(850, growth=0))
    assert [each.rung for each in plan.ladder if not each.actions] == [Rung.BRAKE, Rung.FREEZE]
    assert plan.ladder[0].text == "nothing: no victim grows"
    assert started(step(node(850, growth=0))) is Rung.RECLAIM


def test_without_a_shortage_the_ladder_stays_on_the_ground():
    taken = step(node(700))
    assert (taken.kind, taken.state) == ("ground", GROUND)


def test_all_rungs_in_their_order_while_nothing_helps():
    state, rungs, at_s = GROUND, [], 0.0
    for _ in range(5):
        taken = step(node(850, at_s=at_s), state)
        rungs.append(started(taken))
        state = taken.state
        at_s += 1
    # Eviction starts again for as long as there is a victim: its rounds have their own pace.
    assert rungs == [Rung.BRAKE, Rung.RECLAIM, Rung.FREEZE, Rung.EVICT, Rung.EVICT]
    assert [each.plan.rung for each in state.in_force] == [Rung.BRAKE]
    assert "freeze was not enough (use fell by 0 B)" in step(node(850, at_s=3), _climbed_to(Rung.FREEZE)).sentence


def test_what_was_done_for_memory_ends_though_best_effort_pods_are_short_of_cpu():
    starving = FeaturePlan(Verdict("BECPUEvict", True, "…", needs=(Need(BE_REQUESTED_CPU, 1, 2, 1),)), Balance(CPU))
    state, at_s = step(node(850)).state, 0
    for at_s in (10, 20, 30, 39):
        view = node(700, at_s=at_s)
        plan = plan_for(view)
        taken = next_rung(view, replace(plan, features=(*plan.features, starving)), state, ALL)
        assert (taken.kind, [each.plan.rung for each in taken.state.in_force]) == ("wait", [Rung.BRAKE])
        state = taken.state
    view = node(700, at_s=40)
    taken = next_rung(view, replace(plan_for(view), features=(starving,)), state, ALL)
    assert (taken.kind, taken.state) == ("undo", GROUND)
    # One that has a victim is a shortage to act on: the rung that was climbed is kept.
    with_victim = replace(starving, victims=plan_for(node(850)).victims)
    taken = next_rung(view, replace(plan_for(view), features=(with_victim,)), state, ALL)
    assert [each.plan.rung for each in taken.state.in_force] == [Rung.BRAKE]


def test_only_what_is_configured_is_climbed():
    settings = LadderSettings(rungs=frozenset({Rung.FREEZE, Rung.BRAKE}))
    first = step(node(850), settings=settings)
    second = step(node(850, at_s=1), first.state, settings)
    third = step(node(850, at_s=2), second.state, settings)
    assert (started(first), started(second), third.kind) == (Rung.BRAKE, Rung.FREEZE, "top")


def test_a_rung_is_not_judged_before_its_time():
    first = step(node(850))
    taken = step(node(850, at_s=0.999), first.state)
    assert (taken.kind, taken.sentence) == ("wait", "brake is judged in 1 ms")


def test_a_rung_that_freed_half_the_need_is_given_as_long_again():
    # GIVEN 80 MiB were needed when the brake was applied
    first = step(node(860))
    helps = step(node(820, at_s=1), first.state)
    assert (helps.kind, started(helps)) == ("wait", None)
    assert helps.sentence == "brake helps: use fell by 40.0 MiB"
    # WHEN the next second brings nothing more, the next rung follows
    assert started(step(node(820, at_s=2), helps.state)) is Rung.RECLAIM
    assert started(step(node(821, at_s=1), first.state)) is Rung.RECLAIM


def test_stalls_that_fall_are_help_as_long_as_use_does_not_rise():
    first = step(node(860, stalled_s=2))
    assert (
        step(node(860, at_s=1, stalled_s=1), first.state).sentence == "brake helps: use fell by 0 B, stalls fell by 50%"
    )
    assert started(step(node(860, at_s=1, stalled_s=1.1), first.state)) is Rung.RECLAIM
    assert started(step(node(861, at_s=1, stalled_s=0), first.state)) is Rung.RECLAIM


def test_when_the_shortage_is_over_for_long_enough_all_is_undone_the_last_first():
    state = _climbed_to(Rung.FREEZE)
    calm = step(node(700, at_s=3), state)
    assert (calm.kind, calm.undo) == ("wait", ())
    # A shortage in between restarts the time.
    again = step(node(850, at_s=3.5), calm.state)
    assert again.state.calm_since_ns is None
    late = step(node(700, at_s=34), step(node(700, at_s=4), calm.state).state)
    assert late.kind == "undo"
    assert [each.plan.rung for each in late.undo] == [Rung.FREEZE, Rung.BRAKE]
    assert late.sentence == "the shortage is over: undone is freeze, brake"
    assert late.state == GROUND


def test_a_pod_is_thawed_in_time_and_not_frozen_again_in_the_same_shortage():
    settings = LadderSettings(rungs=frozenset({Rung.FREEZE}))
    frozen = step(node(850), settings=settings)
    thawed = step(node(850, at_s=20), frozen.state, settings)
    assert (thawed.kind, [each.plan.rung for each in thawed.undo]) == ("undo", [Rung.FREEZE])
    assert step(node(850, at_s=21), thawed.state, settings).kind == "top"
    # Also while the shortage is just over.
    calm = step(node(700, at_s=20), frozen.state, settings)
    assert [each.plan.rung for each in calm.undo] == [Rung.FREEZE]


def test_what_was_evicted_and_does_not_go_is_killed_after_its_grace():
    state = _climbed_to(Rung.EVICT)
    assert state.evicted == ("uid-spark-hog",)
    reported = (PendingRelease("uid-spark-hog", NOW_NS + 3 * NS_PER_S, 300 * MIB),)
    # GIVEN it is pending since second 3, so that no other pod is to be evicted
    waiting = step(supposed(node(850, at_s=32.9), pending=reported), state)
    assert (waiting.kind, waiting.sentence) == ("wait", "the end of evicted pods is awaited")
    killing = step(supposed(node(850, at_s=33), pending=reported), waiting.state)
    assert started(killing) is Rung.KILL
    assert [action.name for action in killing.begin.actions] == ["hog"]
    # It is killed once; what follows it are further evictions.
    assert killing.state.evicted == ()
    assert step(supposed(node(850, at_s=34), pending=reported), killing.state).kind == "wait"
    assert started(step(node(850, at_s=34), killing.state)) is Rung.EVICT


def test_a_frozen_pod_is_thawed_before_its_eviction():
    evicting = step(node(850, at_s=3), _climbed_to(Rung.FREEZE))
    assert (started(evicting), [each.plan.rung for each in evicting.undo]) == (Rung.EVICT, [Rung.FREEZE])


def test_a_pod_that_another_client_deleted_is_not_killed():
    state = _climbed_to(Rung.EVICT)
    others = (PendingRelease("uid-spark-idle", NOW_NS, 20 * MIB),)
    assert started(step(supposed(node(850, at_s=60), pending=others), state)) is Rung.EVICT


def test_without_the_rung_no_pod_is_killed():
    settings = LadderSettings(rungs=frozenset({Rung.EVICT}))
    first = step(node(850), settings=settings)
    assert started(first) is Rung.EVICT
    reported = (PendingRelease("uid-spark-hog", NOW_NS, 300 * MIB),)
    assert step(supposed(node(850, at_s=60), pending=reported), first.state, settings).kind == "wait"


def _climbed_to(rung: Rung) -> LadderState:
    state, at_s = GROUND, 0
    while state.rung is not rung:
        state = step(node(850, at_s=at_s), state).state
        at_s += 1
    return state
