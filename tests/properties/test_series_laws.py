"""A series says of any window what a plain list of the same samples would."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.state.series.store import SeriesStore

_STEPS = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1000, 1000)), max_size=40)


@given(
    steps=_STEPS, length=st.integers(2, 5), apart=st.integers(1, 3), later=st.integers(0, 9), window=st.integers(0, 20)
)
def test_a_window_is_that_of_a_plain_list(steps, length, apart, later, window):
    store: SeriesStore[str] = SeriesStore(length, 1000, apart_ns=apart)
    kept: list[tuple[int, int]] = []
    now = 100
    for step, value in steps:
        now += step
        is_kept = not kept or now - kept[-1][0] >= apart
        assert store.append("a", now, value) is is_kept
        kept += [(now, value)] if is_kept else []
    now += later
    inside = [value for moment, value in kept[-length:] if moment > now - window]
    assert store.query("a", now, window, "count") == len(inside)
    if not inside:
        assert store.query("a", now, window, "p90") is None
        return
    assert store.query("a", now, window, "latest") == inside[-1]
    average = store.query("a", now, window, "avg")
    assert average is not None and math.isclose(average, sum(inside) / len(inside), abs_tol=1e-9)
    for name, percent in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        below = max(len(inside) * percent // 100 - 1, 0)
        assert store.query("a", now, window, name) == sorted(inside)[below]  # type: ignore[arg-type]
