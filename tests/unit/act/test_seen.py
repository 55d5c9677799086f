"""What files held when they were last seen, and what another process wrote since."""

from __future__ import annotations

import pytest

from koordebpf.act.writer.change import Seen, is_wish
from koordebpf.kernel.cgroup.files import CgroupFile, Value

KEY, OTHER = ("be", CgroupFile.CPUSET_CPUS), ("ls", CgroupFile.CPUSET_CPUS)


@pytest.mark.parametrize(
    ("before", "now", "on_v1", "on_v2"),
    [
        (frozenset({0, 1}), frozenset({0}), False, True),
        (frozenset({0, 1}), frozenset({0, 1}), False, False),
        (frozenset({0, 1}), frozenset({0, 1, 2}), True, True),
        (frozenset({0, 1}), frozenset({1, 2}), True, True),
        (2000, 1000, True, True),
        (2000, 2000, False, False),
        (None, 1000, True, True),
        (None, frozenset({0}), True, True),
        (frozenset({0}), None, True, True),
    ],
)
def test_a_change_is_another_process_s_unless_v1_may_have_taken_an_offline_cpu_away(
    before: Value, now: Value, on_v1: bool, on_v2: bool
) -> None:
    assert (is_wish(before, now, 1), is_wish(before, now, 2)) == (on_v1, on_v2)
    assert is_wish(before, now, None) is on_v2


def test_each_value_is_known_once_in_the_order_it_was_seen() -> None:
    seen = Seen()
    for value in (1, 1, 2, 2, 1):
        seen.record(KEY, value)
    assert (seen.lately(KEY), seen.lately(OTHER), seen.last) == ((1, 2, 1), (), {KEY: 1})


def test_of_many_values_the_last_ones_are_known() -> None:
    seen = Seen()
    for value in range(40):
        seen.record(KEY, value)
    assert seen.lately(KEY) == tuple(range(24, 40))


def test_a_file_that_is_journalled_now_held_nothing_before() -> None:
    seen = Seen()
    for value in (1, 2):
        seen.record(KEY, value)
        seen.record(OTHER, value)
    seen.begin([KEY, ("gone", CgroupFile.CPUSET_CPUS)])
    assert (seen.lately(KEY), seen.lately(OTHER)) == ((2,), (1, 2))
    assert seen.last == {KEY: 2, OTHER: 2}


def test_others_than_the_kept_ones_are_forgotten() -> None:
    seen = Seen()
    keys = [(name, CgroupFile.CPU_QUOTA) for name in "abc"]
    for key in keys:
        seen.record(key, 1)
    seen.keep(keys[:1], keys[1:2])
    assert list(seen.last) == keys[:2]
    seen.forget(keys)
    assert seen.last == {}
