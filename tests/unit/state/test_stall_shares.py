"""Stall shares out of stall sums, held against what PSI would show."""

from __future__ import annotations

import math

import pytest

from koordebpf.events.records import CgroupStall, StallSum
from koordebpf.state.measured import PsiLine, StallShares
from koordebpf.state.stalls.shares import DecayingShare, ShareTable, some_ns, union_bounds

S = 1_000_000_000
POD, APP, SIDE = 1, 2, 3


def row(cgroup_id: int, some: int, *, changed: int = 0, stalled: int = 0) -> CgroupStall:
    return CgroupStall(cgroup_id, StallSum(), StallSum(), some_ns=some, changed_ts_ns=changed, stalled=stalled)


def line(shares: StallShares | None) -> PsiLine:
    assert shares is not None
    return shares.some


def test_a_steady_share_is_reached_as_psi_reaches_it() -> None:
    table = ShareTable()
    table.push(0, [], {})
    for second in range(1, 301):
        table.push(second * S, [row(APP, second * S // 4)], {})
    some = line(table.shares(APP, 300 * S))
    assert some.avg10 == pytest.approx(25, rel=1e-6)
    assert some.avg60 == pytest.approx(25 * (1 - math.exp(-5)), rel=1e-6)
    assert some.avg300 == pytest.approx(25 * (1 - math.exp(-1)), rel=1e-6)
    assert some.total_us == 75_000_000


def test_averages_do_not_depend_on_how_often_one_looks() -> None:
    often, seldom = DecayingShare(0), DecayingShare(0)
    for tenth in range(1, 101):
        often.push(tenth * S // 10, tenth * S // 20)
    seldom.push(10 * S, 5 * S)
    assert often.line(10 * S).avg10 == pytest.approx(seldom.line(10 * S).avg10)


def test_they_decay_while_nothing_stalls() -> None:
    table = ShareTable()
    table.push(0, [], {})
    table.push(10 * S, [row(APP, 10 * S)], {})
    at_once, later = (line(table.shares(APP, at * S)) for at in (10, 20))
    assert at_once.avg10 == pytest.approx(100 * (1 - math.exp(-1)))
    assert later.avg10 == pytest.approx(at_once.avg10 * math.exp(-1))
    assert later.total_us == at_once.total_us


def test_what_stalled_since_the_last_push_is_spread_over_no_more_than_that() -> None:
    idle_first, idle_and_pushed = ShareTable(), ShareTable()
    for table, seconds in ((idle_first, (0, 100)), (idle_and_pushed, range(0, 101))):
        for second in seconds:
            table.push(second * S, [row(APP, S // 2)], {})
        table.push(101 * S, [row(APP, S // 2 + S)], {})
    both = [line(table.shares(APP, 101 * S)).avg10 for table in (idle_first, idle_and_pushed)]
    assert both[0] == pytest.approx(both[1])
    assert both[0] == pytest.approx(100 * (1 - math.exp(-0.1)))


def test_a_stall_that_still_lasts_counts_up_to_now() -> None:
    now = row(APP, 3 * S, changed=5 * S, stalled=2)
    assert (some_ns(now, 9 * S), some_ns(row(APP, 3 * S, changed=5 * S), 9 * S)) == (7 * S, 3 * S)
    table = ShareTable()
    table.push(5 * S, [now], {})
    table.push(9 * S, [now], {})
    assert line(table.shares(APP, 9 * S)).total_us == 7_000_000


def test_full_is_some_for_a_cgroup_of_one_task_and_unknown_for_any_other() -> None:
    table = ShareTable()
    table.push(1 * S, [row(APP, S), row(SIDE, S), row(POD, S)], {APP: 1, SIDE: 2})
    shares = {each: table.shares(each, S) for each in (APP, SIDE, POD)}
    assert [each is not None and each.full == each.some for each in shares.values()] == [True, False, False]
    assert all(each is not None and each.derived for each in shares.values())
    table.push(2 * S, [row(APP, S)], {})  # it did not stall: how many tasks it has is not asked for
    assert table.shares(APP, 2 * S).full is not None
    table.push(2 * S + 1, [row(APP, S + 1)], {APP: 0})  # it has ended meanwhile
    assert table.shares(APP, 2 * S + 1).full is not None
    table.push(3 * S, [row(APP, 2 * S)], {APP: 2})
    table.push(4 * S, [row(APP, 3 * S)], {APP: 1})  # one again, but what it did meanwhile is not known
    assert table.shares(APP, 4 * S).full is None


def test_which_cgroups_tasks_are_worth_counting() -> None:
    table = ShareTable()
    rows = [row(APP, S), row(SIDE, 0), row(POD, S)]
    assert table.stalled_since(rows) == [APP, POD]
    table.push(S, rows, {})
    assert table.stalled_since([row(APP, S), row(SIDE, 0, stalled=1), row(POD, 2 * S)]) == [SIDE, POD]


def test_an_old_id_with_a_new_cgroup_restarts_and_what_is_gone_is_forgotten() -> None:
    table = ShareTable()
    table.push(1 * S, [row(APP, S), row(SIDE, S)], {APP: 2})
    table.push(2 * S, [row(APP, S // 2)], {APP: 1})
    shares = table.shares(APP, 2 * S)
    assert line(shares).total_us == 500_000
    assert line(shares).avg10 == pytest.approx(50 * (1 - math.exp(-0.1)))
    assert shares.full is not None
    assert (table.shares(SIDE, 2 * S), len(table)) == (None, 1)


def test_a_parent_has_its_own_row_or_bounds() -> None:
    table = ShareTable()
    table.push(0, [], {})
    table.push(10 * S, [row(POD, 4 * S), row(APP, 3 * S), row(SIDE, 2 * S)], {})
    assert line(table.shares_of_parent(POD, [APP, SIDE], 10 * S)).total_us == 4_000_000
    above = table.shares_of_parent(99, [APP, SIDE], 10 * S)
    assert above.some_at_most is not None
    assert (above.some.total_us, above.some_at_most.total_us, above.full) == (3_000_000, 5_000_000, None)
    assert above.some.avg10 < line(table.shares(POD, 10 * S)).avg10 < above.some_at_most.avg10
    only = table.shares_of_parent(99, [APP, 98], 10 * S)
    assert (only.some_at_most, only.full) == (None, None)
    assert table.shares_of_parent(99, [98], 10 * S) is None


def test_bounds_end_at_all_the_time() -> None:
    low, high = union_bounds([PsiLine(70, 10, 0, 5), PsiLine(60, 20, 0, 7)])
    assert (low, high) == (PsiLine(70, 20, 0, 7), PsiLine(100, 30, 0, 12))
