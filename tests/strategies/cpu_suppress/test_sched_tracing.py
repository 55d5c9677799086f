"""Scheduler tracing within its budget: how many wake-ups it samples, when it rests, and what it shows of waits."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, cast

import pytest

from koordebpf.errors import SupportError
from koordebpf.events.run_queue import SLOTS, RunQueueWait
from koordebpf.kernel.bpf.sched_latency import RunTime
from koordebpf.strategies.cpu_suppress.sched_tracing import SchedTracing, WakeMetrics
from koordebpf.strategies.cpu_suppress.values import WakeSettings
from koordebpf.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from koordebpf.kernel.bpf.sched_latency import SchedLatency
    from koordebpf.kernel.io.loop import Loop

CPUS = os.cpu_count() or 1
BUDGET = 0.01


class Programs:
    """The programs' part: `shift` they are attached with (None: they are not), and what they took of the CPUs."""

    def __init__(self) -> None:
        self.shift: int | None = None
        self.taken = RunTime()
        self.histograms: dict[int, int] = {}  # cgroup → waits
        self.records: list[bytes] = []
        self.followed: tuple[Collection[int], Collection[int]] = ((), ())
        self.refuses, self.missed, self.quiet_ns, self.closed = False, 0, 0, 0

    def attach(self, shift: int) -> None:
        if self.refuses:
            raise SupportError("scheduler tracing", "ENOMEM", "")
        self.shift = shift

    def detach(self) -> None:
        self.shift = None

    def close(self) -> None:
        self.closed += 1

    def fileno(self) -> int:
        return 7

    def send_each(self, quiet_ns: int) -> None:
        self.quiet_ns = quiet_ns

    def keep_groups(self, latency_sensitive: Collection[int], best_effort: Collection[int]) -> int:
        self.followed = latency_sensitive, best_effort
        self.histograms = {each: count for each, count in self.histograms.items() if each in latency_sensitive}
        return self.missed

    def groups(self) -> list[tuple[bytes, bytes]]:
        values = (struct.pack(f"<IIQQ{SLOTS}I", 0, 0, count, count, *[0] * SLOTS) for count in self.histograms.values())
        return [(key.to_bytes(8, "little"), value) for key, value in zip(self.histograms, values, strict=True)]

    def run_time(self) -> RunTime:
        return self.taken

    def read(self) -> list[bytes]:
        return self.records

    def take(self, ratio: float, since_ns: int) -> None:
        """Take so much of all CPUs since then."""
        ns = round(ratio * since_ns * CPUS)
        self.taken = RunTime(self.taken.runs + 1, self.taken.timed_runs + 1, self.taken.timed_ns + ns)


class Waits:
    """The loop's part: what it watches."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        self.watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        del self.watched[fd]


class Rig:
    def __init__(self) -> None:
        self.programs, self.loop, self.metrics = Programs(), Waits(), WakeMetrics()
        self.seen: list[RunQueueWait] = []
        self.tracing = SchedTracing(
            cast("SchedLatency", self.programs),
            WakeSettings(budget_ratio=BUDGET),
            cast("Loop", self.loop),
            self.seen.append,
            self.metrics,
        )
        self.now_ns = self.tracing.due_ns - NS_PER_S // 4  # when it began

    def look(self, ratio: float) -> float:
        """Look when it is due, after so much of the CPUs was taken; return in how many seconds the next look is due."""
        since_ns, self.now_ns = self.tracing.due_ns - self.now_ns, self.tracing.due_ns
        self.programs.take(ratio, since_ns)
        self.tracing.poll(self.now_ns)
        return (self.tracing.due_ns - self.now_ns) / NS_PER_S


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestPace:
    def test_it_begins_with_one_wake_up_of_sixteen(self, rig: Rig) -> None:
        assert (rig.programs.shift, rig.metrics.sampled_ratio) == (4, 1 / 16)

    def test_it_looks_again_soon_after_another_pace_and_each_five_seconds_else(self, rig: Rig) -> None:
        assert [rig.look(ratio) for ratio in (0, 0.5 * BUDGET, 0.5 * BUDGET)] == [0.25, 5, 5]
        assert rig.programs.shift == 3
        assert rig.metrics.cost_ratio == pytest.approx(0.5 * BUDGET, rel=0.01)

    def test_before_it_is_due_nothing_is_counted(self, rig: Rig) -> None:
        rig.programs.take(1, NS_PER_S)
        rig.tracing.poll(rig.tracing.due_ns - 1)
        assert (rig.programs.shift, rig.metrics.cost_ratio) == (4, None)

    def test_above_its_budget_it_looks_at_less_and_rests_for_a_minute_at_the_end(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        assert [(rig.look(2 * BUDGET), rig.programs.shift) for _ in range(3)] == [(0.25, 7), (0.25, 10), (60, None)]
        assert rig.metrics.sampled_ratio == 0
        assert (rig.look(2 * BUDGET), rig.programs.shift) == (0.25, 10)
        took = "scheduler tracing took 2.00% of the node's CPUs, of 1 % that it may"
        assert caplog.messages == [
            f"{took}: one wake-up of 128 is traced",
            f"{took}: one wake-up of 1024 is traced",
            f"{took}: it rests for 60 s",
            "scheduler tracing continues: one wake-up of 1024 is traced",
        ]

    def test_what_it_took_before_a_rest_is_not_counted_after_it(self, rig: Rig) -> None:
        for _ in range(3):
            rig.look(2 * BUDGET)
        rig.look(2 * BUDGET)  # the minute of the rest
        rig.look(0.5 * BUDGET)
        assert rig.metrics.cost_ratio == pytest.approx(0.5 * BUDGET, rel=0.01)

    def test_where_it_cannot_be_attached_again_it_rests(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.programs.refuses = True
        assert (rig.look(0), rig.programs.shift) == (60, None)
        assert "; it rests for 60 s" in caplog.text
        rig.programs.refuses = False
        rig.look(0)
        assert rig.programs.shift == 10

    def test_where_it_cannot_be_attached_at_all_its_programs_are_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        programs = Programs()
        programs.refuses = True
        with pytest.raises(SupportError):
            SchedTracing(
                cast("SchedLatency", programs), WakeSettings(), cast("Loop", Waits()), lambda _: None, WakeMetrics()
            )
        assert programs.closed == 1


class TestWaits:
    def test_those_of_cgroups_that_are_followed_no_more_count_still(self, rig: Rig) -> None:
        rig.programs.histograms = {1: 5, 2: 7}
        rig.tracing.follow([2, 3], [4])
        assert rig.programs.followed == ([2, 3], [4])
        rig.programs.histograms[2] = 8
        rig.look(0.5 * BUDGET)
        assert rig.metrics.waits is not None
        assert rig.metrics.waits.count == 5 + 8

    def test_those_that_cannot_be_followed_are_counted_in_the_log(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig.tracing.follow([1], [])
        assert caplog.messages == []
        rig.programs.missed = 3
        rig.tracing.follow([1], [])
        assert caplog.messages == ["3 cgroups are more than scheduler tracing can follow"]

    def test_a_record_is_handed_on_and_garbage_is_not(self, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
        rig.programs.records = [b"garbage", struct.pack("<QQQQII", 1, 2, 3 * NS_PER_MS, 4, 5, 0)]
        rig.loop.watched[7]()
        assert rig.seen == [RunQueueWait(1, 2, 3 * NS_PER_MS, 4, 5)]
        assert len(caplog.messages) == 1
        rig.tracing.listen_each(9)
        assert rig.programs.quiet_ns == 9

    def test_closed_it_is_watched_no_more(self, rig: Rig) -> None:
        rig.tracing.close()
        assert (rig.loop.watched, rig.programs.closed) == ({}, 1)
