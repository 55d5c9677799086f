"""What the guards look at: lost records within a window, pods without a cgroup, and suspends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec.structs import replace

from koordebpf.agent.rounds import GuardWatch
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.state.build import view_of_frame
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, frame, pod

VIEW = view_of_frame(
    frame(
        [
            pod("a"),
            pod("b", has_cgroup=False),
            pod("c", has_cgroup=False, terminating=True),
            pod("d", phase="Pending"),
        ]
    )
)


@dataclass
class Lost:
    ring_lost: int = 5


@dataclass
class Node:
    """The watch's part: the kernel's counters, and the source of pods; and the clock, when it is."""

    lost: Lost | None = field(default_factory=Lost)
    known: ClusterState | None = field(default_factory=lambda: ClusterState(1, NOW_NS))
    rescans: int = 0
    ns: int = NOW_NS
    slept_ns: int = 7 * NS_PER_S

    @property
    def source(self) -> Any:
        return self if self.known is not None else None

    def state(self) -> ClusterState | None:
        return self.known

    def totals(self) -> Lost | None:
        return self.lost

    def rescan(self) -> None:
        self.rescans += 1

    def now_ns(self) -> int:
        return self.ns

    def wall_s(self) -> float:
        return 0.0

    def suspended_ns(self) -> int:
        return self.slept_ns


class Rig:
    def __init__(self) -> None:
        self.node = Node()
        self.guards = GuardWatch(AgentConfig(), cast("NodeWatch", self.node), self.node)

    def facts(self, after_s: float = 0) -> GuardFacts:
        self.node.ns += int(after_s * NS_PER_S)
        return self.guards.facts(replace(VIEW, now_ns=self.node.ns), DecisionMemory())


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestRecords:
    def test_what_was_lost_counts_for_ten_seconds_beside_what_came(self, rig: Rig) -> None:
        rig.facts()
        found = []
        for after_s in (1, 9, 0.1, 1):
            assert rig.node.lost
            rig.node.lost.ring_lost += 2
            rig.guards.count(100)
            facts = rig.facts(after_s)
            found.append((facts.records, facts.lost_records))
        assert found == [(100, 2), (200, 4), (300, 6), (100, 2)]

    def test_what_was_lost_before_the_agent_began_is_none(self, rig: Rig) -> None:
        assert rig.facts().lost_records == 0

    def test_without_counters_nothing_is_lost(self, rig: Rig) -> None:
        rig.node.lost = None
        assert (
            GuardWatch(AgentConfig(), cast("NodeWatch", rig.node), rig.node).facts(VIEW, DecisionMemory()).lost_records
            == 0
        )


class TestPods:
    def test_those_that_run_and_are_not_ending_have_a_cgroup(self, rig: Rig) -> None:
        facts = rig.facts()
        assert (facts.running_pods, facts.running_pods_without_cgroup) == (2, 1)

    def test_the_source_says_when_it_was_sure_and_its_first_problem(self, rig: Rig) -> None:
        assert (rig.facts().pods_synced_ns, rig.facts().source_problem) == (NOW_NS, None)
        rig.node.known = ClusterState(2, 0, problems=("403", "404"))
        assert (rig.facts().pods_synced_ns, rig.facts().source_problem) == (None, "403")
        rig.node.known = None
        assert (rig.facts().pods_synced_ns, rig.facts().source_problem) == (None, None)


class TestSuspends:
    def test_a_short_one_is_passed_over(self, rig: Rig) -> None:
        rig.node.slept_ns += 5 * NS_PER_S
        assert (rig.facts().clock_jump_ns, rig.node.rescans) == (5 * NS_PER_S, 0)

    def test_a_long_one_counts_until_the_source_has_answered_since(self, rig: Rig) -> None:
        rig.node.slept_ns += 6 * NS_PER_S
        assert [rig.facts(1).clock_jump_ns for _ in range(3)] == [6 * NS_PER_S] * 3
        assert rig.node.rescans == 1
        rig.node.known = ClusterState(2, rig.node.ns - 2 * NS_PER_S)  # as the machine resumed
        assert rig.facts().clock_jump_ns == 6 * NS_PER_S
        rig.node.known = ClusterState(3, rig.node.ns)
        assert [rig.facts(1).clock_jump_ns for _ in range(3)] == [0] * 3
        assert rig.node.rescans == 1

    def test_the_next_one_is_seen_as_the_first(self, rig: Rig) -> None:
        for times in (1, 2):
            rig.node.slept_ns += 6 * NS_PER_S
            assert rig.facts(1).clock_jump_ns == 6 * NS_PER_S
            rig.node.known = ClusterState(2, rig.node.ns + 1)
            assert rig.facts(1).clock_jump_ns == 0
            assert rig.node.rescans == times
