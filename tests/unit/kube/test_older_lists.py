"""Which lists that are older than what is known are the truth."""

from __future__ import annotations

from koordebpf.kube.cache.reflector import OlderLists


def test_several_over_two_minutes_are() -> None:
    lists = OlderLists(120.0)
    assert [lists.are_true("90", now_s) for now_s in (0.0, 60.0, 119.0, 120.0)] == [False, False, False, True]


def test_two_are_too_few_however_far_apart() -> None:
    lists = OlderLists(120.0)
    assert [lists.are_true("90", now_s) for now_s in (0.0, 1000.0, 1001.0)] == [False, False, True]


def test_one_that_is_older_still_starts_over() -> None:
    lists = OlderLists(120.0)
    assert not any(lists.are_true(str(90 - n), 100.0 * n) for n in range(20))


def test_they_may_grow_as_the_restored_cluster_does() -> None:
    lists = OlderLists(120.0)
    assert [lists.are_true(str(90 + n), 50.0 * n) for n in range(4)] == [False, False, False, True]


def test_one_that_is_not_older_between_them_forgets_them() -> None:
    lists = OlderLists(120.0)
    for now_s in (0.0, 60.0):
        lists.are_true("90", now_s)
    lists.forget()
    assert not lists.are_true("90", 130.0)
