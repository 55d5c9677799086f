"""A recording carried forward under other settings: pods taken out, pods kept in, and what that comes to."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, TickSettings, tick_view
from koordebpf.decision.what_if.observed import Observer
from koordebpf.decision.what_if.simulation import Outcome, Simulation, StallCurve
from koordebpf.decision.what_if.variant import Variant
from koordebpf.decision.what_if.world import World
from koordebpf.errors import ConfigError
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import GuardLimits
from koordebpf.state.pods.namespaces import ExemptionSettings
from koordebpf.state.view import PastEviction, PendingRelease
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.played_node import Job, Played, jobs_of, play

AT = "memoryEvictThresholdPercent"
DOWN_TO = "memoryEvictLowerPercent"
HOG = [Job("hog", 5, 60, 600, 50), Job("calm", 0, 60, 100, 100)]


def outcomes(rounds: list[Played], *variants: Variant, **asked: Any) -> tuple[Outcome, ...]:
    run = Simulation(variants, **asked)
    for each in rounds:
        run.observe(each.tick)
    return run.results


def evicted(rounds: list[Played]) -> list[str]:
    return [name for each in rounds for name in each.evicted]


def names(outcome: Outcome) -> list[str]:
    return [each.name for each in outcome.listed]


def seconds(time_ns: int) -> float:
    return time_ns / NS_PER_S


@pytest.mark.parametrize("seed", range(5))
def test_under_its_own_settings_a_recording_comes_to_what_happened(seed):
    rounds = list(play(jobs_of(seed, 300), 300))
    assert evicted(rounds)
    run = Simulation([Variant("as recorded")])
    for each in rounds:
        run.observe(each.tick)
    (found,) = run.results
    recorded = run.recorded
    assert names(found) == evicted(rounds)
    assert (found.evictions, found.freed_bytes) == (recorded.evictions, recorded.freed_bytes)
    assert (found.above_ns, found.stall_ns) == (recorded.above_ns, recorded.stall_ns)
    assert found.held_ns == found.unseen_ns == found.full_ns == 0
    assert seconds(recorded.passed_ns) == 299 and recorded.rounds == 300


def test_a_pod_that_is_evicted_earlier_is_out_until_the_recording_evicts_it():
    rounds = list(play(HOG, 60))
    before = next(place for place, each in enumerate(rounds) if each.evicted)
    (found,) = outcomes(rounds, Variant("eager", {AT: 60, DOWN_TO: 50}))
    assert names(found) == ["hog"]
    assert found.listed[0].at_ns < rounds[before].view.now_ns
    assert 0 < seconds(found.apart_ns) <= before
    assert found.held_ns == 0
    assert found.above_ns == NS_PER_S  # at the round that sees it


def test_a_pod_that_ends_by_itself_is_out_until_then():
    rounds = list(play(HOG, 80, enforce=False))
    (found,) = outcomes(rounds, Variant("enforced"))
    assert names(found) == ["hog"]  # a dry run names it each second, and here it is gone
    assert seconds(found.apart_ns) == pytest.approx(60 - (found.listed[0].at_ns / NS_PER_S - 1000), abs=1.5)


def test_a_pod_that_is_not_evicted_keeps_its_last_known_usage():
    rounds = list(play(HOG, 60))
    late = Variant("late", {AT: 95, DOWN_TO: 70})
    (found,) = outcomes(rounds, late)
    assert evicted(rounds) == ["hog"] and names(found) == []
    gone = next(place for place, each in enumerate(rounds) if each.evicted)
    assert seconds(found.held_ns) == 60 - gone - 1
    assert found.apart_ns == found.held_ns
    (short,) = outcomes(rounds, late, held_ns=5 * NS_PER_S)
    assert seconds(short.held_ns) == 5


def test_what_is_held_is_evicted_when_others_grow():
    jobs = [*HOG, Job("second", 30, 60, 200, 50)]
    rounds = list(play(jobs, 60))
    (found,) = outcomes(rounds, Variant("late", {AT: 90, DOWN_TO: 70}))
    assert evicted(rounds) == ["hog"]
    assert names(found) == ["hog"]
    assert found.listed[0].freed_bytes == 400 * MIB  # as it was last seen, at 80 %
    (never,) = outcomes(rounds, Variant("off", gates={"BEMemoryEvict": False}))
    assert never.evictions == 0 and never.full_ns == 0


def test_more_than_the_node_has_is_said():
    jobs = [*HOG, Job("second", 30, 60, 500, 50)]
    (found,) = outcomes(list(play(jobs, 60, 90, 80)), Variant("off", gates={"BEMemoryEvict": False}))
    assert found.evictions == 0
    assert found.full_ns > 0


def test_a_release_that_takes_long_is_counted_on_and_not_evicted_for_again():
    rounds = list(play(HOG, 60, enforce=False))
    quick, slow = (outcomes(rounds, Variant("enforced"), release_ns=each * NS_PER_S)[0] for each in (1, 8))
    assert names(quick) == names(slow) == ["hog"]
    assert slow.above_ns - quick.above_ns == pytest.approx(7 * NS_PER_S, abs=NS_PER_S)


def test_budgets_and_guards_are_those_of_the_simulated_node():
    jobs = [Job(f"hog-{number}", 5, 60, 200, 200) for number in range(4)]
    limits = TickSettings(guards=GuardLimits(evictions_per_minute=1))
    free, bounded = outcomes(
        list(play(jobs, 60, 60, 40, enforce=False)),
        Variant("free"),
        Variant("bounded", change=lambda settings: replace(settings, guards=limits.guards)),
    )
    assert (free.evictions, bounded.evictions) == (3, 1)  # 600 of 1000 MiB
    assert bounded.above_ns > free.above_ns


def test_a_closed_guard_keeps_the_simulated_node_from_acting():
    rounds = list(play(HOG, 60, enforce=False))
    closed = [
        replace(each.tick, guards=replace(each.tick.guards, pods_synced_ns=None), frame=each.tick.frame)
        for each in rounds
    ]
    run = Simulation([Variant("enforced")])
    for tick in closed:
        run.observe(tick)
    assert run.results[0].evictions == 0


def test_settings_that_change_who_may_go_are_looked_up_again():
    change = ExemptionSettings(qos_labels=frozenset())
    (found,) = outcomes(
        list(play(HOG, 60, enforce=False)),
        Variant("judged", change=lambda was: replace(was, eviction=EvictSettings(exemptions=change))),
    )
    assert names(found) == ["hog"]


def test_a_forecast_is_of_the_recorded_threshold_alone():
    rounds = list(play(HOG, 10, enforce=False))
    seen = Observer().observe(rounds[0].tick, rounds[0].view)
    same, other = Variant("same"), Variant("other", {AT: 60})
    for variant in (same, other):
        World().step(seen, variant.applied(seen.tick))
    assert same.applied(seen.tick).frame.strategyInForce == rounds[0].view.strategy


def test_usage_that_is_not_known_evicts_nothing():
    rounds = list(play(HOG, 20))
    run = Simulation([Variant("eager", {AT: 60, DOWN_TO: 50})])
    for each in rounds:
        measured = each.tick.frame.measured
        unknown = replace(measured, node=replace(measured.node, used_bytes=None))
        run.observe(replace(each.tick, frame=replace(each.tick.frame, measured=unknown)))
    assert run.results[0].evictions == 0 and run.recorded.above_ns == 0


def test_a_gap_is_not_counted_and_another_run_starts_again():
    rounds = list(play(HOG, 60, enforce=False))
    run = Simulation([Variant("enforced")])
    for each in rounds[:40]:
        run.observe(each.tick)
    assert run.results[0].evictions == 1
    for each in rounds[52:]:  # 13 s later
        run.observe(each.tick)
    assert seconds(run.recorded.passed_ns) == 39 + 7
    for each in rounds[15:40]:  # the clock has restarted
        run.observe(each.tick)
    assert seconds(run.recorded.passed_ns) == 39 + 7 + 24
    assert run.results[0].evictions == 2  # of the other run nothing is carried over


def test_an_agent_that_was_restarted_starts_again():
    rounds = list(play(HOG, 40, enforce=False))
    observer = Observer()
    first = observer.observe(rounds[0].tick, rounds[0].view)
    later = replace(rounds[1].tick, frame=replace(rounds[1].tick.frame, startedNs=5))
    assert first.is_first and observer.observe(later, rounds[1].view).is_first


def test_stalls_of_the_node_serve_where_pods_are_not_timed():
    from koordebpf.state.measured import PsiLine

    rounds = list(play(HOG, 30, enforce=False))
    run = Simulation([Variant("as recorded")])
    for number, each in enumerate(rounds):
        measured = each.tick.frame.measured
        node = replace(measured.node, psi_some=PsiLine(0, 0, 0, 1000 * number))
        run.observe(
            replace(each.tick, frame=replace(each.tick.frame, measured=replace(measured, node=node, ledger=None)))
        )
    assert run.recorded.stalls_of_node and run.recorded.stall_ns == 29 * 1_000_000
    assert run.results[0].stall_ns == 29 * 1_000_000


def test_of_a_round_before_which_the_nodes_sum_ran_backwards_no_stall_is_known():
    from koordebpf.state.measured import PsiLine

    observer, found = Observer(), []
    for each, total_us in zip(play(HOG, 4, enforce=False), (5000, 6000, 100, 300), strict=True):
        measured = each.tick.frame.measured
        node = replace(measured.node, psi_some=PsiLine(0, 0, 0, total_us))
        frame = replace(each.tick.frame, measured=replace(measured, node=node, ledger=None))
        tick = replace(each.tick, frame=frame)
        found.append(observer.observe(tick, tick_view(tick)).stall_ns)
    assert found == [0, 1_000_000, None, 200_000]


def test_without_any_stalls_none_are_expected():
    rounds = list(play(HOG, 10, enforce=False))
    run = Simulation([Variant("as recorded")])
    for each in rounds:
        measured = replace(each.tick.frame.measured, ledger=None)
        run.observe(replace(each.tick, frame=replace(each.tick.frame, measured=measured)))
    assert run.recorded.stall_ns is None and run.results[0].stall_ns is None


def test_a_variant_looks_again_where_what_is_in_force_changes():
    tick = next(play(HOG, 1)).tick
    variant = Variant("eager", {AT: 60}, {"MemoryEvict": True})
    first = variant.applied(tick)
    assert first.frame.strategyInForce.memoryEvictThresholdPercent == 60
    assert first.frame.strategyInForce.memoryEvictLowerPercent == 70  # what is not named stays
    assert first.frame.featureGates == {"BEMemoryEvict": True, "MemoryEvict": True}
    other = replace(tick, frame=replace(tick.frame, strategyInForce=None))
    assert variant.applied(other).frame.strategyInForce.memoryEvictLowerPercent is None
    with pytest.raises(ConfigError):
        Variant("bad", {AT: "much"}).applied(tick)


class TestStallCurve:
    def test_the_recorded_time_gives_the_recorded_stalls(self):
        curve = StallCurve()
        for percent, stall in ((70, 0), (80, 5), (80, 15), (90, 50)):
            curve.add(percent, 100, stall)
        assert curve.expected({70: 100, 80: 200, 90: 100}).stall_ns == 70

    def test_a_level_that_was_not_seen_is_as_the_nearest(self):
        curve = StallCurve()
        curve.add(70, 100, 10)
        curve.add(90, 100, 40)
        found = curve.expected({75: 100, 95: 50, 70: 100})
        assert (found.stall_ns, found.unseen_ns) == (10 + 20 + 10, 150)

    def test_nothing_seen_is_nothing_expected(self):
        assert StallCurve().expected({70: 100}).unseen_ns == 100


def slowly_released(rounds: list[Played], at: int, left_mib: int = 100) -> list[TickFrame]:
    """Return the rounds of a dry run as if the hog had been evicted at one, and kept a part of its memory."""
    found = []
    sent = PastEviction(rounds[at].view.now_ns, "uid-spark-hog", "spark")
    for number, each in enumerate(rounds):
        frame, tick = each.tick.frame, each.tick
        if number > at:
            pods = [
                replace(
                    measure,
                    memory=replace(measure.memory, inactive_anon_bytes=0, active_anon_bytes=left_mib * MIB),
                )
                if measure.uid == sent.uid and measure.memory
                else measure
                for measure in frame.measured.pods
            ]
            node = replace(frame.measured.node, used_bytes=(300 + 100 + left_mib) * MIB)
            measured = replace(frame.measured, pods=tuple(pods), node=node)
            waiting = PendingRelease(sent.uid, sent.at_ns, 400 * MIB)
            tick = replace(tick, frame=replace(frame, measured=measured, evictions=(sent,), pending=(waiting,)))
        found.append(tick)
    return found


def test_a_pod_that_really_releases_slowly_is_held_whole_and_gone_once_it_is_evicted_here():
    ticks = slowly_released(list(play(HOG, 40, enforce=False)), 12)  # of 400 MiB 100 are left
    run = Simulation([Variant("late", {AT: 95, DOWN_TO: 70}), Variant("never", gates={"BEMemoryEvict": False})])
    for tick in ticks:
        run.observe(tick)
    late, never = run.results
    assert late.evictions == never.evictions == 0
    assert late.held_ns == never.held_ns == 27 * NS_PER_S
    again = Simulation([Variant("now", {AT: 85, DOWN_TO: 70})])
    for number, tick in enumerate(ticks):
        grown = 300 if number > 20 else 0  # others, so that the held pod is evicted here too
        measured = tick.frame.measured
        node = replace(measured.node, used_bytes=measured.node.used_bytes + grown * MIB)
        again.observe(replace(tick, frame=replace(tick.frame, measured=replace(measured, node=node))))
    (found,) = again.results
    assert names(found) == ["hog"]
    assert found.held_ns == 9 * NS_PER_S


def test_a_held_pod_that_is_evicted_here_is_out_even_if_its_object_went_long_ago():
    jobs = [*HOG, Job("second", 30, 60, 200, 50)]
    rounds = list(play(jobs, 60))
    (found,) = outcomes(rounds, Variant("late", {AT: 90, DOWN_TO: 70}), release_ns=3 * NS_PER_S)
    assert names(found) == ["hog"]
    after = (rounds[-1].view.now_ns - found.listed[0].at_ns) // NS_PER_S
    gone = next(place for place, each in enumerate(rounds) if each.evicted)
    assert seconds(found.held_ns) == 60 - gone - 1 - after + 2
