"""Bounded series of samples, and what they say of a window."""

from __future__ import annotations

import pytest

from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_S

KEY = ("memory_used_bytes", "uid-1")


def store_of(*values: float, length: int = 100) -> SeriesStore[tuple[str, str]]:
    """Return a store with one sample each second, the first one at 0."""
    store: SeriesStore[tuple[str, str]] = SeriesStore(length, 60 * NS_PER_S)
    for second, value in enumerate(values):
        assert store.append(KEY, second * NS_PER_S, value)
    return store


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("avg", 5), ("p50", 4), ("p90", 8), ("p95", 8), ("p99", 8), ("latest", 1), ("count", 9)],
)
def test_what_nine_samples_say(aggregation, expected):
    # koordlet's own example: of nine values p90 is the eighth, p50 the fourth
    store = store_of(9, 8, 7, 6, 5, 4, 3, 2, 1)
    assert store.query(KEY, 8 * NS_PER_S, 60 * NS_PER_S, aggregation) == expected


def test_a_percentile_of_one_sample_is_that_sample():
    assert {store_of(7).query(KEY, 0, NS_PER_S, each) for each in ("p50", "p90", "p95", "p99")} == {7}


def test_percentiles_of_a_hundred():
    store = store_of(*range(1, 101))
    found = [store.query(KEY, 99 * NS_PER_S, 100 * NS_PER_S, each) for each in ("p50", "p90", "p95", "p99")]
    assert found == [50, 90, 95, 99]


def test_the_begin_of_a_window_is_no_part_of_it():
    store = store_of(1, 2, 3, 4)
    assert [store.query(KEY, 3 * NS_PER_S, window * NS_PER_S, "count") for window in (0, 1, 2, 9)] == [0, 1, 2, 4]
    assert store.query(KEY, 3 * NS_PER_S, 2 * NS_PER_S, "avg") == 3.5


def test_where_nothing_was_sampled_only_the_count_is_known():
    store = store_of(1, 2)
    for key, now_s in ((KEY, 60), (("memory_used_bytes", "uid-2"), 1)):
        found = [store.query(key, now_s * NS_PER_S, NS_PER_S, each) for each in ("avg", "p50", "latest", "count")]
        assert found == [None, None, None, 0]


def test_the_oldest_makes_room_for_the_newest():
    store = store_of(*range(10), length=4)
    assert store.query(KEY, 9 * NS_PER_S, 60 * NS_PER_S, "count") == 4
    assert store.query(KEY, 9 * NS_PER_S, 60 * NS_PER_S, "avg") == 7.5
    assert store.query(KEY, 9 * NS_PER_S, 2 * NS_PER_S, "avg") == 8.5
    assert (
        store.query(KEY, 9 * NS_PER_S, NS_PER_S, "avg") == store.query(KEY, 9 * NS_PER_S, 60 * NS_PER_S, "latest") == 9
    )


@pytest.mark.parametrize("length", [2, 9])
def test_a_sample_that_comes_too_soon_is_dropped(length):
    store: SeriesStore[str] = SeriesStore(length, 100, apart_ns=10)
    assert [store.append("a", t_ns, t_ns) for t_ns in (0, 9, 10, 10, 5, 20, 29, 30)] == [
        True, False, True, False, False, True, False, True,
    ]  # fmt: skip
    assert store.query("a", 30, 100, "latest") == 30


def test_there_are_no_more_series_than_it_has_room_for():
    store: SeriesStore[int] = SeriesStore(2, 100, most=3)
    assert [store.append(key, 1, 7) for key in range(5)] == [True, True, True, False, False]
    assert store.append(0, 2, 7)


@pytest.mark.parametrize("length", [2, 9])
def test_the_series_of_what_is_gone_makes_room(length):
    # GIVEN two pods, of which one ends at 40
    store: SeriesStore[str] = SeriesStore(length, 100, most=2)
    for moment in range(0, 160, 10):
        store.append("stays", moment, moment)
        if moment <= 40:
            store.append("ends", moment, moment)
    # WHEN a third one starts while the window still reaches the second THEN there is no room for it
    assert not store.append("starts", 140, 1)
    assert store.query("ends", 130, 100, "latest") == 40
    # WHEN it does not any more THEN there is
    assert store.append("starts", 141, 1)
    assert (len(store), store.query("ends", 141, 1000, "count"), store.query("stays", 151, 10, "count")) == (2, 0, 1)


def test_whole_numbers_stay_exact():
    store = store_of(2**53 - 1, 3)
    assert store.query(KEY, NS_PER_S, 9 * NS_PER_S, "p50") == 3
    assert store.query(KEY, NS_PER_S, 9 * NS_PER_S, "avg") == 2**52 + 1
