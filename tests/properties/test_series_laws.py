"""A store says of any window what plain lists of the same samples would."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.state.series.aggregate import percentile_index
from koordebpf.state.series.block import decode_block, encode_block
from koordebpf.state.series.store import SeriesStore

_VALUES = st.one_of(st.integers(-1000, 1000), st.integers(0, 2**40).map(lambda pages: pages * 4096))
_ROUNDS = st.lists(
    st.tuples(st.integers(0, 4), st.dictionaries(st.sampled_from("abc"), _VALUES, max_size=3), st.integers(1, 50)),
    max_size=12,
)
_NAMES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@given(rounds=_ROUNDS, apart=st.integers(1, 3), later=st.integers(0, 9), window=st.integers(0, 900))
def test_a_window_is_that_of_a_plain_list(rounds, apart, later, window):
    # GIVEN rounds of up to three series of a kind, each repeated some times, and the same as plain lists
    store = SeriesStore(apart_ns=apart)
    kept: dict[str, list[tuple[int, int]]] = {name: [] for name in "abc"}
    now = 100
    for step, values, times in rounds:
        for _ in range(times):
            now += step
            found = store.append_round(now, {("kind", name): value for name, value in values.items()})
            assert found == sum(not kept[name] or now - kept[name][-1][0] >= apart for name in values)
            for name, value in values.items():
                if not kept[name] or now - kept[name][-1][0] >= apart:
                    kept[name].append((now, value))
    now += later
    for name, samples in kept.items():
        inside = [(moment, value) for moment, value in samples if moment > now - window]
        most = max((abs(value) for _, value in samples), default=0) / 30_000
        same_window(store, ("kind", name), now, window, inside, most)


def same_window(
    store: SeriesStore, key: tuple[str, ...], now: int, window: int, inside: list[tuple[int, int]], most: float
) -> None:
    assert store.query(key, now, window, "count") == len(inside)
    all_of_it = store.aggregated(key, now, window)
    if not inside:
        assert store.query(key, now, window, "p90") is None is all_of_it
        return
    values = [value for _, value in inside]
    average = store.query(key, now, window, "avg")
    assert average == pytest.approx(sum(values) / len(values), abs=most)
    assert store.query(key, now, window, "latest") == pytest.approx(values[-1], abs=most)
    for name, percent in _NAMES.items():
        expected = sorted(values)[percentile_index(len(values), percent)]
        assert store.query(key, now, window, name) == pytest.approx(expected, abs=most)  # type: ignore[arg-type]
    span = inside[-1][0] - inside[0][0]
    assert (all_of_it is None) is (2 * span < window)
    if all_of_it:
        assert (all_of_it.span_ns, all_of_it.avg) == (span, average)


@given(
    values=st.lists(st.floats(-1e300, 1e300) | st.just(math.nan), min_size=1, max_size=70).filter(
        lambda values: not all(map(math.isnan, values))
    )
)
def test_a_block_is_as_exact_as_it_says(values):
    known = [value for value in values if not math.isnan(value)]
    off = max((max(known) - min(known)) / 131_000, max(map(abs, known)) / 65_000, 1e-300)
    for value, decoded in zip(values, decode_block(encode_block(0, values)), strict=True):
        assert math.isnan(value) == math.isnan(decoded)
        assert math.isnan(value) or abs(value - decoded) <= off


@given(
    base=st.integers(0, 2**40),
    pages=st.lists(st.integers(0, 65_534), min_size=1, max_size=70),
)
def test_memory_that_moves_by_less_than_256_mib_in_a_block_is_exact(base, pages):
    values = [float((base + each) * 4096) for each in pages]
    assert decode_block(encode_block(0, values)) == values
