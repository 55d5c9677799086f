"""What is remembered of evictions, from the answer of the executor to memory that is back, or is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.memory import (
    EMPTY_DUE_NS,
    GONE_DUE_NS,
    Event,
    EvictionFailed,
    EvictionSent,
    NodeMeasured,
    OutcomeArrived,
    PodsListed,
    Settled,
    after,
    frees_the_round,
    is_waiting,
    settled,
)
from koordebpf.state.build import view_of_frame
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, pod, supposed

HOG, OTHER = "uid-hog", "uid-other"
SENT_NS = NOW_NS - 10 * NS_PER_MS
SETTINGS = EvictSettings()


def node(hog_mib: int = 200, at_ns: int = NOW_NS, **more: object) -> NodeView:
    """Return a node of 1,000 MiB at 85 %, whose hog may go first."""
    pods = [pod("hog", uid=HOG, priority=5000, anon=hog_mib), pod("other", uid=OTHER, priority=5500, anon=100)]
    return supposed(view_of_frame(frame(pods, used=850)), now_ns=at_ns, **more)


def outcome(executor: str, result: Result, **more: object) -> Outcome:
    return Outcome(HOG, "be", "hog", executor, result, "as it is", SENT_NS, **more)  # type: ignore[arg-type]


class Remembered:
    """The memory as one agent holds it, through one event after another."""

    def __init__(self, *, keeps_released: bool = False) -> None:
        self.memory = DecisionMemory()
        self._keeps_released = keeps_released
        candidate = next(each for each in decide(node(), SETTINGS).features[0].candidates if each.uid == HOG)
        self.take(EvictionSent(candidate, SENT_NS, 850 * MIB, for_use=True, for_cpu=False))

    def take(self, event: Event) -> None:
        self.memory = after(self.memory, event)
        assert after(self.memory, event) == self.memory, "the same event twice"

    def answered(self, outcome: Outcome) -> bool:
        """Return whether another candidate may be chosen."""
        self.take(OutcomeArrived(outcome, NOW_NS))
        return frees_the_round(self.memory, outcome)

    def measured(self, view: NodeView) -> Settled:
        event = NodeMeasured(view, SETTINGS.pending_max_ns, self._keeps_released)
        news = settled(self.memory, event)
        self.take(event)
        return news

    def victims(self, view: NodeView) -> list[str]:
        """Return the victims of a round on this view."""
        pending = self.measured(view).memory.pending
        return [victim.candidate.uid for victim in decide(supposed(view, pending=pending), SETTINGS).victims]


def test_while_its_memory_comes_back_no_other_pod_is_evicted() -> None:
    made = Remembered()
    assert made.victims(node()) == []
    assert is_waiting(made.memory, NOW_NS)
    assert not made.answered(outcome("api", Result.DONE, sent_ns=SENT_NS))
    assert made.victims(node()) == []


@pytest.mark.parametrize(
    "answer",
    [
        outcome("cri", Result.GONE),
        outcome("cgroup", Result.GONE),
        outcome("cri", Result.FAILED, sent_ns=SENT_NS, retry_at_ns=NOW_NS + 5 * NS_PER_S),
        outcome("cgroup", Result.FAILED, sent_ns=SENT_NS),
        outcome("cgroup", Result.FAILED),
        outcome("cgroup", Result.FAILED, killed_tasks=0),
        outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=0),
    ],
)
def test_what_brought_nothing_is_barred_and_the_next_one_is_evicted_at_once(answer: Outcome) -> None:
    made = Remembered()
    assert made.answered(answer)
    assert made.victims(node()) == [OTHER]
    # THEN for as long as a release is waited for, and no longer
    for at_ns, expected in ((NOW_NS + SETTINGS.pending_max_ns, OTHER), (NOW_NS + SETTINGS.pending_max_ns + 1, HOG)):
        assert made.victims(node(at_ns=at_ns)) == [expected]
    # AND the budget holds what was sent
    assert len(made.memory.budget.evictions) == answer.was_sent
    assert made.memory.last.last_ns(for_cpu=False) in (None, SENT_NS if answer.result is Result.DONE else None)


def test_why_it_is_barred_stands_in_the_plan() -> None:
    made = Remembered()
    made.answered(outcome("cri", Result.GONE))
    news = made.measured(node())
    view = supposed(node(), pending=news.memory.pending)
    assert [(entry.uid, entry.problem) for entry in news.late] == [(HOG, "gone")]
    plan = decide(view, SETTINGS)
    why = "its eviction brought nothing: as it is; it is passed over for 120 s"
    assert [(each.code, each.why) for each in plan.features[0].excluded] == [("no_effect", why)]
    assert plan.sentence.endswith(f"passed over spark/hog ({why})")
    assert made.measured(view).late == ()  # once


def test_a_cgroup_without_processes_has_a_second_for_its_memory() -> None:
    made = Remembered()
    assert made.answered(outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=3))
    assert made.victims(node()) == []
    assert is_waiting(made.memory, NOW_NS + EMPTY_DUE_NS // 2)
    assert made.victims(node(at_ns=NOW_NS + EMPTY_DUE_NS)) == [OTHER]
    assert len(made.memory.budget.evictions) == 1
    assert made.memory.effectiveness.ineffective == 1  # the node's use did not fall


def test_a_part_that_came_back_was_useful_where_the_nodes_use_fell() -> None:
    made = Remembered()
    made.answered(outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=3))
    made.measured(node(hog_mib=60, at_ns=NOW_NS + EMPTY_DUE_NS, used_bytes=710 * MIB))
    assert (made.memory.effectiveness.ineffective, made.memory.effectiveness.awaited) == (0, ())


def test_a_pod_that_the_api_server_knows_no_more_is_on_its_way_out_for_a_moment() -> None:
    made = Remembered(keeps_released=True)
    made.answered(outcome("api", Result.GONE, sent_ns=SENT_NS))
    assert made.memory.budget.evictions == ()
    assert made.victims(node(at_ns=NOW_NS + GONE_DUE_NS - 1)) == []
    assert made.victims(node(at_ns=NOW_NS + GONE_DUE_NS)) == [OTHER]


def test_memory_that_comes_back_after_all_ends_the_bar() -> None:
    made = Remembered()
    made.answered(outcome("cri", Result.GONE))
    made.measured(node())
    news = made.measured(node(hog_mib=10))
    assert [entry.uid for entry in news.released] == [HOG]
    assert made.victims(node()) == [HOG]  # as after a restart of its containers


def test_one_that_cannot_be_measured_stays_barred() -> None:
    made = Remembered()
    made.answered(outcome("cri", Result.GONE))
    view = node()
    unmeasured = replace(view, pods=tuple(replace(each, memory=None) for each in view.pods))
    made.measured(unmeasured)
    assert [entry.uid for entry in made.memory.pending] == [HOG]


def test_a_terminating_pod_that_cannot_die_is_not_counted_on_again() -> None:
    made = Remembered()
    made.answered(outcome("cgroup", Result.FAILED, sent_ns=SENT_NS))
    view = node()
    leaving = replace(view, pods=tuple(replace(each, is_terminating=each.uid == HOG) for each in view.pods))
    assert made.victims(leaving) == [OTHER]
    assert made.memory.effectiveness.ineffective == 1


def test_a_refusal_and_a_request_that_is_sent_again_bar_for_their_own_time() -> None:
    for result in (Result.REFUSED, Result.FAILED):
        made = Remembered(keeps_released=True)
        retry_ns = NOW_NS + NS_PER_S
        assert made.answered(outcome("api", result, sent_ns=SENT_NS, retry_at_ns=retry_ns))
        assert (made.memory.pending, [each.uid for each in made.memory.refused]) == ((), [HOG])
        assert len(made.memory.budget.evictions) == (result is Result.FAILED)  # it may have been done
        assert made.memory.last.last_ns(for_cpu=False) is None
        made.take(PodsListed(frozenset()))
        assert made.memory.refused == ()


def test_since_when_an_eviction_is_unanswered_is_remembered_until_any_answer() -> None:
    made = Remembered(keeps_released=True)
    for tries in range(3):
        failed = replace(outcome("api", Result.FAILED, sent_ns=SENT_NS, retry_at_ns=NOW_NS), decided_ns=SENT_NS + tries)
        made.answered(failed)
        assert [each.unanswered_ns for each in made.memory.refused] == [SENT_NS]
    made.answered(outcome("api", Result.REFUSED, sent_ns=SENT_NS, retry_at_ns=NOW_NS))
    assert [each.unanswered_ns for each in made.memory.refused] == [None]
    made.answered(outcome("api", Result.DONE, sent_ns=SENT_NS))
    assert made.memory.refused == ()


def test_an_executor_that_fails_at_once_is_not_asked_again_and_again() -> None:
    made = Remembered()
    made.answered(outcome("cgroup", Result.GONE))
    other = next(each for each in decide(node(), SETTINGS).features[0].candidates if each.uid == OTHER)
    made.take(EvictionFailed(other, NOW_NS))
    made.answered(replace(outcome("cgroup", Result.FAILED), uid=OTHER))
    assert made.victims(node()) == []
    assert made.memory.budget.evictions == ()


@pytest.mark.parametrize(
    ("answer", "is_killed"),
    [
        (outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=3), True),
        (outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=0), True),
        (outcome("cgroup", Result.FAILED, killed_tasks=0), True),  # no process was found, and it holds memory
        (outcome("cgroup", Result.GONE), True),
        (outcome("cgroup", Result.FAILED, sent_ns=SENT_NS, killed_tasks=0), False),  # processes are left
        (outcome("cgroup", Result.FAILED), False),
        (outcome("cgroup", Result.HELD), False),
        (outcome("cri", Result.DONE, sent_ns=SENT_NS, killed_tasks=3), False),
        (outcome("api", Result.GONE), False),
    ],
)
def test_a_pod_counts_as_killed_that_has_no_process_any_more(answer: Outcome, is_killed: bool) -> None:
    made = Remembered()
    made.answered(answer)
    assert (HOG in made.memory.killed) is is_killed


def test_a_killed_pod_counts_as_such_until_it_has_processes_or_is_gone() -> None:
    made = Remembered()
    made.answered(outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=3))
    made.measured(node(hog_mib=0))
    assert made.memory.killed == {HOG}
    killed = made.memory
    made.take(NodeMeasured(node(), SETTINGS.pending_max_ns, keeps_released=False, populated=frozenset({HOG, OTHER})))
    assert made.memory.killed == frozenset()
    made.memory = killed
    made.measured(replace(node(), pods=node().pods[1:]))
    assert made.memory.killed == frozenset()


@pytest.mark.parametrize(
    ("deleted_ago_s", "since_ago_s"),
    [(3 * 86400, NOW_NS / NS_PER_S), (60.0, 60), (-5.0, 0), (None, 0)],  # earlier than the boot; an API server ahead
)
def test_a_pod_is_waited_for_since_it_was_deleted_whenever_the_agent_started(deleted_ago_s, since_ago_s) -> None:
    wall_s = 1_700_000_000.0
    view = node(wall_s=wall_s)
    (hog, other) = view.pods
    deleted_s = None if deleted_ago_s is None else wall_s - deleted_ago_s
    hog = replace(hog, is_terminating=True, terms=replace(hog.terms, deleted_s=deleted_s))
    view = replace(view, pods=(hog, other))
    news = settled(DecisionMemory(), NodeMeasured(view, SETTINGS.pending_max_ns, keeps_released=False))
    assert [(entry.uid, NOW_NS - entry.since_ns) for entry in news.memory.pending] == [(HOG, since_ago_s * NS_PER_S)]
    is_late = since_ago_s * NS_PER_S > SETTINGS.pending_max_ns
    assert [entry.uid for entry in news.late] == ([HOG] if is_late else [])
    victims = decide(replace(view, frame=replace(view.frame, pending=news.memory.pending)), SETTINGS).victims
    assert [each.candidate.uid for each in victims] == ([OTHER] if is_late else [])


def test_what_is_not_set_is_not_in_a_frame() -> None:
    (entry,) = Remembered().memory.pending
    assert entry == PendingRelease(HOG, SENT_NS, 200 * MIB)
