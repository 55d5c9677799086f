"""When the agent marks its node: for evictions of this round, and as long as it waits for their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from koordebpf.agent.taint import NodeMarking
from koordebpf.policy.plan import Plan
from koordebpf.policy.strategy import GATE_OFF, Decision, Empty
from koordebpf.policy.taint import NodeMarkSettings
from koordebpf.state.view import PendingRelease
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, frame, plan_of, pod

if TYPE_CHECKING:
    from koordebpf.act.taint import NodeMarker

HOG = pod("hog", anon=100)
UID = HOG.pod.uid
SHORT, CALM = plan_of(frame([HOG], used=900)), plan_of(frame([HOG], used=100))


class Rig:
    def __init__(self) -> None:
        self.is_marked = False
        self.now_ns = NOW_NS
        self.marking = NodeMarking(NodeMarkSettings(type="taint"), cast("NodeMarker", self))

    def wish(self, is_marked: bool) -> None:
        """The marker's part."""
        self.is_marked = is_marked

    def look(self, plan: Plan, after_s: float = 1, *, sent_s: float | None = None, late: str = "") -> bool:
        """Take in a round; `sent_s`: the pod was evicted so long after it began. Return whether the node is marked."""
        self.now_ns += int(after_s * NS_PER_S)
        pending = [] if sent_s is None else [PendingRelease(UID, self.now_ns + int(sent_s * NS_PER_S), 1)]
        self.marking.observe(plan, pending, {late}, self.now_ns)
        return self.is_marked


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_victim_that_was_sent_in_this_round_marks_the_node(rig: Rig) -> None:
    assert not rig.look(SHORT)
    assert not rig.look(SHORT, sent_s=0)  # in a round before
    assert rig.look(SHORT, sent_s=0.001)


def test_it_stays_while_its_memory_is_awaited_and_a_minute_longer(rig: Rig) -> None:
    rig.look(SHORT, sent_s=0.001)
    assert rig.look(CALM, 100, sent_s=-1)
    assert [rig.look(CALM, after_s) for after_s in (1, 59, 1)] == [True, True, False]


def test_what_is_late_is_awaited_no_more(rig: Rig) -> None:
    rig.look(SHORT, sent_s=0.001)
    assert rig.look(CALM, 1, sent_s=-1, late=UID)
    assert not rig.look(CALM, 60, sent_s=-1, late=UID)
    assert not rig.look(SHORT, sent_s=0.001, late=UID)


def test_another_pods_eviction_marks_nothing(rig: Rig) -> None:
    other = [PendingRelease("other", rig.now_ns + 1, 1)]
    rig.marking.observe(SHORT, other, (), rig.now_ns)
    assert not rig.is_marked


def test_a_condition_of_a_strategy_holds_until_it_is_asked_again_and_has_none(rig: Rig) -> None:
    seen = []
    for conditions, skipped in ((("hot",), None), ((), "not_due"), ((), None), (("hot",), None), ((), GATE_OFF)):
        made = Decision(state=Empty(), reason="", conditions=conditions, skipped=skipped)
        rig.marking.observe(CALM, (), (), rig.now_ns, {"s": made})
        seen.append(rig.is_marked)
    assert seen == [True, True, False, True, False]
