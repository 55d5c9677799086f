"""What memory.events gained between two looks."""

from __future__ import annotations

from koordebpf.events.records import MemcgEvent, MemcgSample
from koordebpf.tools.trace.follow import MemcgEventCounts


def sample(cgroup_id: int, parent_id: int, high: int = 0, maximum: int = 0, oom: int = 0, kill: int = 0) -> MemcgSample:
    return MemcgSample(cgroup_id, parent_id, 0, None, 0, 0, 0, 0, 0, 0, high, maximum, oom, kill)


def test_the_first_look_only_reports_what_there_was() -> None:
    counts = MemcgEventCounts(is_hierarchical=True)
    assert counts.push(1, [sample(1, 0, maximum=9)]) == []
    assert counts.push(2, [sample(1, 0, maximum=9)]) == []
    assert counts.push(3, [sample(1, 0, maximum=12, kill=1)]) == [
        MemcgEvent(3, 1, "max", 3),
        MemcgEvent(3, 1, "oom_kill", 1),
    ]


def test_an_event_is_reported_once_of_the_lowest() -> None:
    counts = MemcgEventCounts(is_hierarchical=True)
    counts.push(1, [sample(1, 0), sample(2, 1), sample(3, 2), sample(4, 2)])
    found = counts.push(2, [sample(1, 0, high=6), sample(2, 1, high=6), sample(3, 2, high=3), sample(4, 2, high=2)])
    assert {(each.cgroup_id, each.count) for each in found} == {(2, 1), (3, 3), (4, 2)}
    assert sum(each.count for each in found) == 6


def test_on_v1_a_cgroup_counts_its_own_alone() -> None:
    counts = MemcgEventCounts(is_hierarchical=False)
    counts.push(1, [sample(1, 0), sample(2, 1)])
    found = counts.push(2, [sample(1, 0, oom=1), sample(2, 1, oom=2)])
    assert {(each.cgroup_id, each.count) for each in found} == {(1, 1), (2, 2)}


def test_the_new_begin_at_zero_and_the_gone_count_in_their_parent() -> None:
    counts = MemcgEventCounts(is_hierarchical=True)
    counts.push(1, [sample(1, 0), sample(2, 1, kill=1)])
    assert counts.push(2, [sample(1, 0, kill=1), sample(3, 1, kill=1)]) == [MemcgEvent(2, 3, "oom_kill", 1)]
    assert counts.push(3, [sample(1, 0, kill=2)]) == [MemcgEvent(3, 1, "oom_kill", 1)]


def test_an_id_that_lives_again_takes_nothing_back() -> None:
    counts = MemcgEventCounts(is_hierarchical=True)
    counts.push(1, [sample(1, 0, maximum=50)])
    assert counts.push(2, [sample(1, 0, maximum=2)]) == []
    assert counts.push(3, [sample(1, 0, maximum=5)]) == [MemcgEvent(3, 1, "max", 3)]
