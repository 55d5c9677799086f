"""The dead man's switch in the agent: what its programs are armed with, its heartbeats, and what it says it did."""

from __future__ import annotations

import logging
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from koordebpf.agent.lifecycle.dead_man import DeadManSwitch
from koordebpf.collect.scope import NodeScope
from koordebpf.decision.dead_man import DeadManAction, DeadManSettings
from koordebpf.decision.decide_tick import TickFrame, decided_again, tick_view
from koordebpf.kernel.bpf.deadman import DeadManOrder, DeadManReport
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.report.prom.decision import DeadManMetrics
from koordebpf.units import MIB, NS_PER_MS
from tests.unit.policy.test_dead_man import NOW_NS, tick

if TYPE_CHECKING:
    from koordebpf.kernel.bpf.deadman import DeadMan

PAGES = MIB // mmap.PAGESIZE
SCOPE = NodeScope("cgroup", MemoryHierarchy(2, Path("/sys/fs/cgroup"), 0), Path("/sys/fs/cgroup/node"), 9)
QUIET = DeadManReport(0, 0, 0, 0, 0, "count", 0, 0, 0, 0, 0, 0, 0, 0)
FIRED = DeadManReport(
    heartbeat_ns=NOW_NS,
    fired_ns=NOW_NS + 600 * NS_PER_MS,
    victim_id=1,
    stall_ns=7,
    pages=1,
    mode="kill",
    seen=3,
    signalled=2,
    refused=1,
    error=0,
    fired=1,
    late_stalls=5,
    spared=6,
    at_limit=1,
)
NO_VICTIM = tick(held=(0, 0))


class Programs:
    """The programs' part: keeps their orders and heartbeats, and reports what a test says."""

    counts = "stalls"

    def __init__(self) -> None:
        self.armed: DeadManOrder | None = None
        self.beats: list[int] = []
        self.said = QUIET

    def order(self, now_ns: int, order: DeadManOrder) -> None:
        self.beats.append(now_ns)
        self.armed = order

    def disarm(self) -> None:
        self.armed = None

    def beat(self, now_ns: int) -> None:
        self.beats.append(now_ns)

    def report(self) -> DeadManReport:
        return self.said


class Rig:
    def __init__(self, action: DeadManAction = "kill") -> None:
        self.programs, self.metrics = Programs(), DeadManMetrics()
        self.switch = DeadManSwitch(
            cast("DeadMan", self.programs), DeadManSettings(action=action), action, SCOPE, self.metrics
        )

    def choose(self, of: TickFrame) -> DeadManOrder | None:
        self.switch.choose(of, tick_view(of), decided_again(of).holding, lambda cgroup: (cgroup + 10,), NOW_NS)
        return self.programs.armed

    def take(self, report: DeadManReport, after_ms: int = 20) -> str | None:
        """Return the pod that it says it fired for, so long after."""
        self.programs.said = report
        news = self.switch.poll_news(report.fired_ns + after_ms * NS_PER_MS)
        return None if news is None or news.choice.victim is None else news.choice.victim.candidate.name


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestArmed:
    def test_it_is_armed_with_the_victim_of_each_round_and_disarmed_without_one(self, rig: Rig) -> None:
        order = rig.choose(tick())
        assert order == DeadManOrder(
            after_ns=500 * NS_PER_MS,
            stall_ns=5 * NS_PER_MS,
            victim_id=1,
            until_ns=order.until_ns if order else 0,
            node_cgroup_id=SCOPE.node_cgroup_id or 0,
            above_pages=700 * PAGES,
            below_pages=300 * PAGES,
            percent=70,
            above_ids=(11,),
            mode="kill",
        )
        assert rig.metrics.is_armed
        assert rig.choose(NO_VICTIM) is None
        assert not rig.metrics.is_armed

    def test_a_part_of_a_page_is_a_page_in_use(self, rig: Rig) -> None:
        odd = tick()
        measured = replace(odd.frame.measured, node=replace(odd.frame.measured.node, total_bytes=1000 * MIB + 5))
        order = rig.choose(replace(odd, frame=replace(odd.frame, measured=measured)))
        assert order is not None
        assert (order.above_pages, order.below_pages) == (700 * PAGES + 1, 300 * PAGES - 1)

    def test_to_count_is_not_to_kill(self) -> None:
        order = Rig("count").choose(tick())
        assert order is not None and order.mode == "count"

    def test_why_there_is_no_victim_is_logged_once_while_it_lasts(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        for of in (tick(), NO_VICTIM, NO_VICTIM, tick(), NO_VICTIM):
            rig.choose(of)
        assert [message.rpartition(", but ")[2] for message in caplog.messages] == [
            "no candidate would give memory back"
        ] * 2


class TestHeartbeats:
    def test_four_of_them_fit_into_the_time_after_which_they_are_late(self, rig: Rig) -> None:
        assert rig.switch.beat(NOW_NS) == NOW_NS + 125 * NS_PER_MS
        assert rig.programs.beats == [NOW_NS]

    def test_a_tick_that_has_not_ended_has_none(self, rig: Rig) -> None:
        rig.switch.tick_begins()
        assert rig.switch.beat(NOW_NS) == NOW_NS + 125 * NS_PER_MS
        assert rig.programs.beats == []
        rig.switch.tick_ended(NOW_NS + 1)
        rig.switch.beat(NOW_NS + 2)
        assert rig.programs.beats == [NOW_NS + 1, NOW_NS + 2]


class TestFired:
    def test_it_is_said_once_when_its_programs_have_looked_at_all_tasks(self, rig: Rig) -> None:
        rig.choose(tick())
        assert [rig.take(FIRED, after_ms) for after_ms in (0, 19, 20, 40)] == [None, None, "big", None]
        assert (rig.metrics.late_stalls, rig.metrics.spared) == (5, 6)
        again = replace(FIRED, fired=2)
        assert rig.take(again) == "big"
        (fired,) = [each for each in rig.metrics.families() if each.name == "koordebpf_dead_man_fired"]
        assert {each.labels["mode"]: each.value for each in fired.samples} == {"count": 0, "kill": 2}

    @pytest.mark.parametrize("mode", ["kill", "count"])
    def test_what_it_did_is_what_the_programs_report(self, mode: str, rig: Rig) -> None:
        rig.choose(tick())
        rig.programs.said = replace(FIRED, mode=mode)
        news = rig.switch.poll_news(FIRED.fired_ns + 20 * NS_PER_MS)
        assert news is not None
        found = news.firing
        assert (found.kills, found.at_limit, found.stall_ns) == (mode == "kill", True, 7)
        assert (found.processes, found.signalled, found.refused, found.error) == (3, 2, 1, 0)

    def test_the_victim_of_the_round_before_counts_and_none_before_that(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        for victims, said in (((1, 2), "big"), ((3, 4), "big"), ((5, 6), None)):
            rig.choose(tick(cgroups=victims))
            assert rig.take(replace(FIRED, fired=victims[0])) == said
        assert caplog.messages == ["the dead man's switch fired for cgroup 1, which is not known any more"]
