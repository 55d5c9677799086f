from __future__ import annotations

import pytest

from koordebpf.state.series.growth import GrowthTable, next_sample_ns
from koordebpf.units import GIB, MIB, NS_PER_MS, NS_PER_S


@pytest.mark.parametrize(
    ("window_ns", "growth"), [(10 * NS_PER_MS, 200 * 100), (20 * NS_PER_MS, 300 * 50), (NS_PER_S, 300 * 25)]
)
def test_growth_is_that_of_the_window(window_ns, growth):
    table: GrowthTable[str] = GrowthTable(window_ns, length=8)
    answers = [table.push("a", step * 10 * NS_PER_MS, value) for step, value in enumerate([0, 0, 0, 100, 300])]
    assert (answers[0], answers[-1]) == (None, growth)


def test_a_slow_pace_does_not_hide_growth():
    table: GrowthTable[str] = GrowthTable(NS_PER_MS)
    table.push("a", 0, 0)
    assert table.push("a", 2 * NS_PER_S, 100) == 50


def test_it_forgets_the_oldest():
    table: GrowthTable[str] = GrowthTable(length=3)
    answers = [table.push("a", step, value) for step, value in enumerate([0, 100, 110, 120, 150])]
    assert answers[-2:] == [10 * NS_PER_S, 20 * NS_PER_S]


def test_a_sample_that_is_not_newer_is_dropped():
    table: GrowthTable[str] = GrowthTable()
    assert [table.push("a", *sample) for sample in ((10, 1), (10, 2), (9, 3))] == [None] * 3
    assert table.push("a", 11, 2) == NS_PER_S
    assert table.push("a", 11, 9) == NS_PER_S


def test_a_single_sample_is_refused():
    with pytest.raises(ValueError, match="two samples"):
        GrowthTable(length=1)


def test_a_table_keeps_keys_apart_and_forgets():
    table: GrowthTable[int] = GrowthTable(window_ns=NS_PER_S)
    assert table.push(1, 0, 0) is None
    assert table.push(2, 0, 5) is None
    assert table.push(1, NS_PER_S, 7) == 7
    table.keep_only([2, 3])
    assert len(table) == 1
    assert table.push(1, 2 * NS_PER_S, 7) is None
    assert table.push(2, NS_PER_S, 4) == -1


@pytest.mark.parametrize(
    ("headroom", "seen", "expected"),
    [
        (6 * GIB, None, NS_PER_S),
        (3 * GIB, None, NS_PER_S // 2),
        (600 * GIB, None, NS_PER_S),
        (MIB, None, 5 * NS_PER_MS),
        (0, None, 5 * NS_PER_MS),
        (-GIB, 1e12, 5 * NS_PER_MS),
        (6 * GIB, float(GIB), NS_PER_S),
        (6 * GIB, 12.0 * GIB, NS_PER_S // 2),
        (6 * GIB, -5.0 * GIB, NS_PER_S),
    ],
)
def test_how_soon_to_look_again(headroom, seen, expected):
    assert next_sample_ns(headroom, seen, cpus=2) == expected


def test_more_cpus_fill_memory_faster():
    assert next_sample_ns(6 * GIB, cpus=8) == NS_PER_S // 4
    assert next_sample_ns(6 * GIB, cpus=2, cap_ns=NS_PER_MS) == NS_PER_MS


def test_a_node_that_is_about_to_cross_is_watched_closely():
    floor, near = 4 * NS_PER_MS, NS_PER_MS
    at_1_gib_s = {"seen_growth_bytes_per_s": float(GIB), "floor_ns": floor, "near_floor_ns": near}
    assert near < next_sample_ns(8 * MIB, **at_1_gib_s) < floor
    assert next_sample_ns(1, **at_1_gib_s) == near
    assert next_sample_ns(1, None, floor_ns=floor, near_floor_ns=near) == floor
    assert next_sample_ns(1, -1e9, floor_ns=floor, near_floor_ns=near) == floor
    assert next_sample_ns(64 * MIB, **at_1_gib_s) > floor
