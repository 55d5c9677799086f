"""How soon the agent looks again."""

from __future__ import annotations

from koordebpf.agent.pace import Pace
from koordebpf.state.measured import NodeMeasure
from koordebpf.units import GIB, NS_PER_MS, NS_PER_S

EMPTY = NodeMeasure("machine", 64 * GIB, 0)


def pace() -> Pace:
    return Pace(floor_ns=4 * NS_PER_MS, cap_ns=NS_PER_S, act_ahead_ns=0)


def due_ns(of: Pace, now_ns: int) -> int:
    return of.due_ns(now_ns, now_ns, EMPTY, None, is_above=False, is_waiting=False, cpus=2)


def test_all_pods_are_measured_each_second_and_each_10_ms_while_memory_comes_back():
    its = pace()
    assert its.is_full_due(0)
    its.measured(0, is_waiting=False)
    assert (its.is_full_due(NS_PER_S - 1), its.is_full_due(NS_PER_S), due_ns(its, 0)) == (False, True, NS_PER_S)
    its.want_full(NS_PER_S // 2)
    assert due_ns(its, 0) == NS_PER_S // 2
    its.measured(0, is_waiting=True)
    assert due_ns(its, 0) == 10 * NS_PER_MS


def test_cpus_are_measured_with_what_comes_a_tenth_early_and_later_while_memory_comes_back():
    its = pace()
    assert its.poll_cpu(10 * NS_PER_S, is_waiting=False)
    assert not its.poll_cpu(10 * NS_PER_S + 899 * NS_PER_MS, is_waiting=False)
    assert not its.poll_cpu(10 * NS_PER_S + 1899 * NS_PER_MS, is_waiting=True)
    assert its.poll_cpu(10 * NS_PER_S + 900 * NS_PER_MS, is_waiting=False)
    assert its.poll_cpu(12 * NS_PER_S + 800 * NS_PER_MS, is_waiting=True)


def test_what_exemptions_keep_is_counted_each_ten_seconds():
    its = pace()
    assert [second for second in range(25) if its.poll_exempt(second * NS_PER_S)] == [0, 10, 20]


def test_after_an_eviction_the_next_look_is_in_10_ms():
    its = pace()
    its.measured(0, is_waiting=False)
    its.carried_out(5 * NS_PER_MS, is_acting=True, is_held=False, cool_time_ns=NS_PER_S)
    assert (its.round_ns, due_ns(its, 5 * NS_PER_MS)) == (15 * NS_PER_MS, 15 * NS_PER_MS)
    assert (its.is_round_due(its.round_ns - 1), its.is_round_due(its.round_ns)) == (False, True)
    its.carried_out(0, is_acting=False, is_held=True, cool_time_ns=0)
    assert its.round_ns == NS_PER_S
