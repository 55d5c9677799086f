"""What is remembered of evictions, from the answer of the executor to memory that is back, or is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.act.guards.pending import EMPTY_DUE_NS, GONE_DUE_NS
from koordebpf.act.outcome import Outcome, Result
from koordebpf.agent.evictions import Evictions
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.store.budget import KeptBudget
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, pod

HOG, OTHER = "uid-hog", "uid-other"
SENT_NS = NOW_NS - 10 * NS_PER_MS
SETTINGS = EvictSettings()


def node(hog_mib: int = 200, at_ns: int = NOW_NS, **more: object) -> NodeView:
    """Return a node of 1,000 MiB at 85 %, whose hog may go first."""
    pods = [pod("hog", uid=HOG, priority=5000, anon=hog_mib), pod("other", uid=OTHER, priority=5500, anon=100)]
    return replace(view_of_frame(frame(pods, used=850)), now_ns=at_ns, **more)


def outcome(executor: str, result: Result, **more: object) -> Outcome:
    return Outcome(HOG, "be", "hog", executor, result, "as it is", SENT_NS, **more)  # type: ignore[arg-type]


def evictions(keeps_released: bool = False) -> Evictions:
    made = Evictions(KeptBudget(None), SETTINGS, keeps_released=keeps_released)
    candidate = next(each for each in decide(node(), SETTINGS).features[0].candidates if each.uid == HOG)
    made.sent(candidate, SENT_NS, 850 * MIB, for_use=True, for_cpu=False)
    return made


def goes(made: Evictions, view: NodeView) -> list[str]:
    """Return the victims of a round on this view."""
    settled, _ = made.settle(view)
    return [victim.candidate.uid for victim in decide(settled, SETTINGS).victims]


def test_while_its_memory_comes_back_nobody_else_goes() -> None:
    made = evictions()
    assert goes(made, node()) == []
    assert made.is_waiting(NOW_NS)
    assert not made.note(outcome("api", Result.DONE, sent_ns=SENT_NS), NOW_NS)
    assert goes(made, node()) == []


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
def test_what_brought_nothing_is_barred_and_the_next_one_goes_at_once(answer: Outcome) -> None:
    made = evictions()
    assert made.note(answer, NOW_NS)
    assert goes(made, node()) == [OTHER]
    # THEN for as long as a release is waited for, and no longer
    for at_ns, expected in ((NOW_NS + SETTINGS.pending_max_ns, OTHER), (NOW_NS + SETTINGS.pending_max_ns + 1, HOG)):
        assert goes(made, node(at_ns=at_ns)) == [expected]
    # AND the budget holds what was sent
    assert len(made.budget.evictions) == answer.was_sent
    assert made.last.last_ns(for_cpu=False) in (None, SENT_NS if answer.result is Result.DONE else None)


def test_why_it_is_barred_stands_in_the_plan() -> None:
    made = evictions()
    made.note(outcome("cri", Result.GONE), NOW_NS)
    view, news = made.settle(node())
    assert [(entry.uid, entry.problem) for entry in news.late] == [(HOG, "gone")]
    plan = decide(view, SETTINGS)
    why = "its eviction brought nothing: as it is; it is passed over for 120 s"
    assert [(each.code, each.why) for each in plan.features[0].excluded] == [("no_effect", why)]
    assert plan.sentence.endswith(f"passed over spark/hog ({why})")
    assert made.settle(view)[1].late == ()  # once


def test_a_cgroup_without_processes_has_a_second_for_its_memory() -> None:
    made = evictions()
    assert made.note(outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=3), NOW_NS)
    assert goes(made, node()) == []
    assert made.is_waiting(NOW_NS + EMPTY_DUE_NS // 2)
    assert goes(made, node(at_ns=NOW_NS + EMPTY_DUE_NS)) == [OTHER]
    assert len(made.budget.evictions) == 1
    assert made.usefulness.useless == 1  # the node's use did not fall


def test_a_part_that_came_back_was_useful_where_the_nodes_use_fell() -> None:
    made = evictions()
    made.note(outcome("cgroup", Result.DONE, sent_ns=SENT_NS, killed_tasks=3), NOW_NS)
    made.settle(node(hog_mib=60, at_ns=NOW_NS + EMPTY_DUE_NS, used_bytes=710 * MIB))
    assert (made.usefulness.useless, made.usefulness.awaited) == (0, ())


def test_a_pod_that_the_api_server_knows_no_more_is_on_its_way_out_for_a_moment() -> None:
    made = evictions(keeps_released=True)
    made.note(outcome("api", Result.GONE, sent_ns=SENT_NS), NOW_NS)
    assert made.budget.evictions == ()
    assert goes(made, node(at_ns=NOW_NS + GONE_DUE_NS - 1)) == []
    assert goes(made, node(at_ns=NOW_NS + GONE_DUE_NS)) == [OTHER]


def test_memory_that_comes_back_after_all_ends_the_bar() -> None:
    made = evictions()
    made.note(outcome("cri", Result.GONE), NOW_NS)
    made.settle(node())
    _, news = made.settle(node(hog_mib=10))
    assert [entry.uid for entry in news.released] == [HOG]
    assert goes(made, node()) == [HOG]  # as after a restart of its containers


def test_one_that_cannot_be_measured_stays_barred() -> None:
    made = evictions()
    made.note(outcome("cri", Result.GONE), NOW_NS)
    view = node()
    unmeasured = replace(view, pods=tuple(replace(each, memory=None) for each in view.pods))
    made.settle(unmeasured)
    assert [entry.uid for entry in made.pending] == [HOG]


def test_a_terminating_pod_that_cannot_die_is_not_counted_on_anew() -> None:
    made = evictions()
    made.note(outcome("cgroup", Result.FAILED, sent_ns=SENT_NS), NOW_NS)
    view = node()
    leaving = replace(view, pods=tuple(replace(each, is_terminating=each.uid == HOG) for each in view.pods))
    assert goes(made, leaving) == [OTHER]
    assert made.usefulness.useless == 1


def test_a_refusal_and_a_request_that_is_sent_again_bar_for_their_own_time() -> None:
    for result in (Result.REFUSED, Result.FAILED):
        made = evictions(keeps_released=True)
        retry_ns = NOW_NS + NS_PER_S
        assert made.note(outcome("api", result, sent_ns=SENT_NS, retry_at_ns=retry_ns), NOW_NS)
        assert (made.pending, [each.uid for each in made.refused]) == ((), [HOG])
        assert len(made.budget.evictions) == (result is Result.FAILED)  # it may have been done
        assert made.last.last_ns(for_cpu=False) is None
        made.forget([])
        assert made.refused == ()


def test_an_executor_that_fails_at_once_is_not_asked_again_and_again() -> None:
    made = evictions()
    made.note(outcome("cgroup", Result.GONE), NOW_NS)
    other = next(each for each in decide(node(), SETTINGS).features[0].candidates if each.uid == OTHER)
    made.tried(other, NOW_NS)
    made.note(replace(outcome("cgroup", Result.FAILED), uid=OTHER), NOW_NS)
    assert goes(made, node()) == []
    assert made.budget.evictions == ()


def test_what_is_not_set_is_not_in_a_frame() -> None:
    (entry,) = evictions().pending
    assert entry == PendingRelease(HOG, SENT_NS, 200 * MIB)
