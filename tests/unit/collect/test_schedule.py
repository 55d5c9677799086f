"""Collectors are asked at their own pace, and what they wrote is read over windows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from koordebpf.agent.jobs import Collector, Schedule
from koordebpf.clock import Due
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone
from koordebpf.kernel.io.loop import Loop
from koordebpf.state.series.store import NODE, NodeSeries, node_series
from koordebpf.units import NS_PER_MS, NS_PER_S

LOAD = ("load1", NODE)
NOTHING: Any = (None, None)  # of a node: these look at none of it


class LoadAverage:
    """What a new collector needs: this class in a module of its own, and a line in `COLLECTORS`."""

    name = "load average"
    period_ns = 2 * NS_PER_S

    def __init__(self, watch: NodeWatch, loop: Loop) -> None:
        self.asked_ns: list[int] = []
        self.is_closed = False

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        self.asked_ns.append(now_ns)
        into.append(LOAD, now_ns, now_ns // NS_PER_S)

    def close(self) -> None:
        self.is_closed = True


class Failing(LoadAverage):
    name = "failing"
    period_ns = NS_PER_S

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        self.asked_ns.append(now_ns)
        raise CgroupGone("kubepods") if now_ns < 3 * NS_PER_S else OSError("no such device")


class Broken(LoadAverage):
    def collect(self, now_ns: int, into: NodeSeries) -> None:
        raise AssertionError("a bug")


def test_a_line_in_the_tuple_is_all_that_a_collector_needs():
    collectors: tuple[Callable[[NodeWatch, Loop], Collector], ...] = (LoadAverage,)
    series = node_series()
    schedule = Schedule([each(*NOTHING) for each in collectors], series)
    assert [schedule.run(second * NS_PER_S) for second in range(9)][-1] == 10 * NS_PER_S
    assert series.query(LOAD, 8 * NS_PER_S, 60 * NS_PER_S, "count") == 5
    assert series.query(LOAD, 8 * NS_PER_S, 60 * NS_PER_S, "p90") == 6


def test_each_is_asked_at_its_own_pace():
    slow, fast = LoadAverage(*NOTHING), Failing(*NOTHING)
    schedule = Schedule([slow, fast], node_series())
    due_ns, wakes = schedule.run(NS_PER_S), 0
    while due_ns is not None and due_ns <= 9 * NS_PER_S:
        due_ns, wakes = schedule.run(due_ns), wakes + 1
    assert slow.asked_ns == [second * NS_PER_S for second in (1, 3, 5, 7, 9)]
    assert fast.asked_ns == [second * NS_PER_S for second in range(1, 10)]
    assert wakes == 8


def test_those_that_are_nearly_due_share_a_wake_up():
    collector = LoadAverage(*NOTHING)
    schedule = Schedule([collector], node_series())
    assert schedule.run(10 * NS_PER_S) == 12 * NS_PER_S
    assert schedule.run(11 * NS_PER_S) == schedule.run(12 * NS_PER_S - 201 * NS_PER_MS) == 12 * NS_PER_S
    assert schedule.run(12 * NS_PER_S - 200 * NS_PER_MS) == 14 * NS_PER_S - 200 * NS_PER_MS
    assert len(collector.asked_ns) == 2


def test_one_that_fails_is_logged_once_for_each_reason_and_does_not_stop_the_others(caplog):
    failing, other = Failing(*NOTHING), LoadAverage(*NOTHING)
    schedule = Schedule([failing, other], node_series())
    with caplog.at_level(logging.WARNING):
        for second in range(6):
            schedule.run(second * NS_PER_S)
    assert len(failing.asked_ns) == 6
    assert len(other.asked_ns) == 3
    assert [record.message.startswith("failing was not measured: ") for record in caplog.records] == [True, True]


def test_a_bug_ends_the_tick():
    with pytest.raises(AssertionError):
        Schedule([Broken(*NOTHING)], node_series()).run(0)


def test_every_collector_is_closed():
    collectors = [LoadAverage(*NOTHING), Failing(*NOTHING)]
    Schedule(collectors, node_series()).close()
    assert all(each.is_closed for each in collectors)


def test_without_collectors_nothing_is_due():
    assert Schedule([], node_series()).run(0) is None


def test_what_is_wanted_earlier_is_due_earlier():
    due = Due(NS_PER_S)
    assert due.is_due(0)
    due.done(0)
    due.want(NS_PER_S // 2)
    due.want(NS_PER_S * 2)
    assert [due.is_due(moment) for moment in (NS_PER_S // 2 - 1, NS_PER_S // 2)] == [False, True]
    due.done(0, 10)
    assert (due.is_due(9), due.is_due(10)) == (False, True)
