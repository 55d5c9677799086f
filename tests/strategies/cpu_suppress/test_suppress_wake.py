"""When a wake becomes a round, and how scheduler tracing keeps its budget."""

from __future__ import annotations

import itertools

import pytest

from koordebpf.strategies.cpu_suppress.bursts import (
    MAX_SHIFT,
    TracingPace,
    WakeState,
    due_ns,
    is_rise,
    judged,
    next_usage_look_ns,
    paced,
    restarted,
    rise,
    woken,
)
from koordebpf.strategies.cpu_suppress.choose import BeAmount
from koordebpf.strategies.cpu_suppress.plan import plan_suppress
from koordebpf.strategies.cpu_suppress.values import SuppressSettings, SuppressState, WakeSettings
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.cpu_nodes import be_tree, node
from tests.support.values.machines import machine

SETTINGS = WakeSettings()
WINDOW_NS = SETTINGS.burst_window_ns
T0 = 100 * NS_PER_S


def test_what_is_seen_is_looked_at_twice_a_window_apart():
    state = restarted(WakeState(), "scheduler", T0, SETTINGS)
    assert (state.by, due_ns(state, SETTINGS)) == ("scheduler", T0 + WINDOW_NS)
    # WHEN the second look shows nothing and nothing more was seen THEN nothing is awaited
    assert due_ns(judged(state, T0 + WINDOW_NS, SETTINGS, is_worth=False), SETTINGS) is None


def test_while_something_is_seen_it_continues_looking():
    state = restarted(restarted(WakeState(), "pressure", T0, SETTINGS), "scheduler", T0 + 1, SETTINGS)
    assert state.by == "scheduler"
    state = judged(state, T0 + WINDOW_NS, SETTINGS, is_worth=False)
    assert due_ns(state, SETTINGS) == T0 + 2 * WINDOW_NS
    assert due_ns(judged(state, T0 + 2 * WINDOW_NS, SETTINGS, is_worth=False), SETTINGS) is None


def test_a_burst_that_lasts_has_four_rounds_and_then_it_rests():
    state = judged(restarted(WakeState(), "scheduler", T0, SETTINGS), T0 + WINDOW_NS, SETTINGS, is_worth=True)
    for number in (2, 3, 4):
        assert due_ns(state, SETTINGS) == T0 + number * WINDOW_NS
        state = judged(state, T0 + number * WINDOW_NS, SETTINGS, is_worth=True)
    # THEN nothing wakes before the time has passed since the first round
    end_ns = T0 + WINDOW_NS + SETTINGS.rest_ns
    assert due_ns(restarted(state, "scheduler", end_ns - 1, SETTINGS), SETTINGS) is None
    assert due_ns(restarted(state, "scheduler", end_ns, SETTINGS), SETTINGS) == end_ns + WINDOW_NS


def test_however_often_it_is_woken_so_many_rounds_in_a_second_are_the_most():
    state, rounds = WakeState(), []
    for now_ns in range(T0, T0 + 20 * NS_PER_S, NS_PER_MS):
        state = restarted(state, "pressure", now_ns, SETTINGS)
        due = due_ns(state, SETTINGS)
        if due is not None and now_ns >= due:
            rounds.append(now_ns)
            state = judged(state, now_ns, SETTINGS, is_worth=True)
    assert len(rounds) >= 60
    later = zip(rounds, rounds[SETTINGS.rounds :], strict=False)
    assert all(fifth - first >= SETTINGS.rest_ns for first, fifth in later)


def looks(seen: range, worth: int | None = None) -> tuple[list[int], WakeState]:
    """Return when the second looks are that show nothing, while pressure is seen at these moments, and the state.

    The look with the number `worth` shows a rise.
    """
    state, when = WakeState(), []
    for now_ns in seen:
        state = restarted(state, "pressure", now_ns, SETTINGS)
        due = due_ns(state, SETTINGS)
        if due is not None and now_ns >= due:
            when.append(now_ns)
            state = judged(state, now_ns, SETTINGS, is_worth=len(when) == worth)
    return when, state


def apart(when: list[int]) -> list[int]:
    return [later - sooner for sooner, later in itertools.pairwise(when)]


def test_pods_that_wait_all_the_time_are_looked_at_less_often_and_in_the_end_twice_a_second():
    when, _ = looks(range(T0, T0 + 10 * NS_PER_S, NS_PER_MS))
    quarter, half = (SETTINGS.rest_ns // parts + WINDOW_NS for parts in (4, 2))
    assert apart(when) == [WINDOW_NS] * 8 + [quarter] * 8 + [half] * (len(when) - 17)
    assert len(when) > 25


def test_a_rise_during_long_waiting_is_followed_by_one_more_look():
    when, _ = looks(range(T0, T0 + 10 * NS_PER_S, NS_PER_MS), worth=20)
    quarter, half = (SETTINGS.rest_ns // parts + WINDOW_NS for parts in (4, 2))
    assert apart(when)[18:29] == [half, WINDOW_NS, *[quarter] * 8, half]


def test_after_a_second_of_peace_they_are_looked_at_as_at_first():
    when, state = looks(range(T0, T0 + NS_PER_S, NS_PER_MS))
    assert state.pressure.empty > 8
    heard_ns = state.heard_ns("pressure")
    assert heard_ns == when[-1] + SETTINGS.rest_ns // 4
    assert restarted(state, "pressure", heard_ns - 1, SETTINGS) == state
    assert restarted(state, "pressure", heard_ns + SETTINGS.rest_ns - 1, SETTINGS).pressure.empty > 8
    assert restarted(state, "pressure", heard_ns + SETTINGS.rest_ns, SETTINGS).pressure.empty == 0


def test_pressure_that_is_there_all_the_time_does_not_hide_what_the_scheduler_sees():
    # GIVEN best-effort pods that wait, which raises the machine's pressure, until that is not listened to
    when, state = looks(range(T0, T0 + 10 * NS_PER_S, NS_PER_MS))
    now_ns = when[-1] + 1
    assert state.since_ns is None
    assert restarted(state, "pressure", now_ns, SETTINGS) == state
    # WHEN a latency-sensitive task waits THEN it is looked at at once, and as often as if nothing had been seen before
    for _ in range(8):
        state = restarted(state, "scheduler", now_ns, SETTINGS)
        state = restarted(restarted(state, "scheduler", now_ns, SETTINGS), "pressure", now_ns, SETTINGS)
        assert (state.by, due_ns(state, SETTINGS)) == ("scheduler", now_ns + WINDOW_NS)
        now_ns += WINDOW_NS
        state = judged(state, now_ns, SETTINGS, is_worth=False)
    assert state.since_ns is not None


@pytest.mark.parametrize(("claimed", "is_worth"), [(599, False), (600, True), (3000, True), (400, False)])
def test_only_a_rise_by_a_share_of_the_node_is_worth_a_round(claimed, is_worth):
    assert is_rise(claimed, 500, 2000, SETTINGS) is is_worth


def test_without_a_share_any_rise_is_worth_one_and_none_is_not():
    settings = WakeSettings(rise_ratio=0)
    assert is_rise(501, 500, 2000, settings)
    assert not is_rise(500, 500, 2000, settings)


def test_a_woken_round_says_why_and_growth_waits_twice_its_time():
    settings = SuppressSettings()
    strategy = {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cfsQuota"}
    view = node(machine(cores=2), strategy=strategy, be_cgroups=be_tree(range(2)), node_used=1000, used={"ls-1": 900})
    plan = woken(plan_suppress(view, SuppressState(), settings), "ls-1 waited", view.now_ns, settings)
    assert plan.reason.endswith("; before its time: ls-1 waited")
    assert plan.desired.reason == plan.reason
    assert plan.next.quota_grown_ns == plan.next.cpuset_grown_ns == view.now_ns + settings.grow_every_ns


def test_above_the_budget_it_looks_at_less_and_with_the_least_it_rests():
    pace, seen = TracingPace(), []
    while pace.shift is not None:
        seen.append(pace.shift)
        pace = paced(pace, 0.5, 0.01)
        assert pace.is_new
    assert seen == sorted(set(seen))
    assert seen[-1] == MAX_SHIFT
    # AND after the rest it begins with the least
    assert paced(pace, 0.0, 0.01) == TracingPace(MAX_SHIFT)


def test_far_below_the_budget_it_looks_at_more_up_to_everything():
    pace = TracingPace(MAX_SHIFT)
    for _ in range(2 * MAX_SHIFT):
        pace = paced(pace, 0.0005, 0.01)
    assert pace == TracingPace(0, is_new=False)


def test_what_it_settles_on_stays_as_it_is():
    # GIVEN a cost that falls with the share of what is sampled, as measured: 80 ns for all, 140 ns more for a sample
    for switches_per_s in (1_000, 30_000, 100_000, 200_000):
        pace, shifts = TracingPace(), []
        for _ in range(40):
            assert pace.shift is not None
            ratio = switches_per_s * (80 + 140 / 2**pace.shift) / (2 * NS_PER_S)
            pace = paced(pace, ratio, 0.01)
            shifts.append(pace.shift)
        assert len(set(shifts[-10:])) == 1, (switches_per_s, shifts)
        assert switches_per_s * (80 + 140 / 2 ** shifts[-1]) / (2 * NS_PER_S) <= 0.01


AMOUNT = BeAmount(1000, 4000, 65, pods_millicpu=400, host_applications_millicpu=100, system_millicpu=0)


@pytest.mark.parametrize(("others", "best_effort", "said"), [
    (700, 1000, "0.7 CPUs used where 0.5 CPUs were left"),
    (699, 1000, None),  # less than 5 % of four CPUs more
    (2000, 0, None),  # there is nothing to take
    (2000, 39, None),  # less than 1 % of four CPUs
    (2000, 40, "2 CPUs used where 0.5 CPUs were left"),
])  # fmt: skip
def test_a_rise_is_said_where_best_effort_pods_run(others, best_effort, said):
    assert rise(others, best_effort, AMOUNT, SETTINGS) == said


def test_usage_is_looked_at_seldom_while_best_effort_pods_do_nothing():
    def after_ns(best_effort, **rest):
        return next_usage_look_ns(T0, best_effort, 4000, WakeState(**rest), SETTINGS) - T0

    assert (after_ns(40), after_ns(39), after_ns(0)) == (50 * NS_PER_MS, 500 * NS_PER_MS, 500 * NS_PER_MS)
    assert after_ns(4000, ready_ns=T0 + 7) == 7


def test_a_rise_that_usage_sees_is_followed_by_looks_as_any_other():
    state = judged(restarted(WakeState(), "usage", T0, SETTINGS), T0, SETTINGS, is_worth=True)
    assert (state.by, due_ns(state, SETTINGS)) == ("usage", T0 + WINDOW_NS)
    state = judged(state, T0 + WINDOW_NS, SETTINGS, is_worth=False)
    assert due_ns(state, SETTINGS) is None
    assert state.heard_ns("usage") == 0
