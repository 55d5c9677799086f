"""What holds of a forecast whatever grew before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.state.forecast import HORIZON_S, GrowthHistory, time_to

S = 1_000_000_000
CURVES = st.lists(st.integers(0, 1 << 40), min_size=2, max_size=80)


def growths_of(curve: list[int], step_ns: int = S) -> list[tuple[float, float]]:
    history: GrowthHistory[str] = GrowthHistory(shortest_ns=step_ns)
    for at, value in enumerate(curve):
        history.push((at + 1) * step_ns, {"x": value})
    return history.growths("x")


@given(st.integers(1, 1 << 30), st.integers(2, 300), st.integers(1, 1 << 40), st.sampled_from([S, S // 100]))
def test_a_ramp_is_forecast_exactly(growth, length, room, step_ns):
    forecast = time_to(room, growths_of([at * growth for at in range(length)], step_ns))
    truth_ns = room * step_ns / growth
    if truth_ns > HORIZON_S * S * 0.999:
        assert forecast is None or truth_ns <= HORIZON_S * S * 1.001
        return
    assert forecast is not None
    for end_ns in (forecast.low_ns, forecast.point_ns, forecast.high_ns):
        assert end_ns == pytest.approx(truth_ns, rel=1e-6, abs=2)


@given(CURVES, st.integers(-100, 1 << 40), st.floats(0, 1))
def test_the_interval_holds_the_point_and_nothing_is_negative(curve, room, stalled_ratio):
    forecast = time_to(room, growths_of(curve), stalled_ratio)
    if forecast is None:
        assert room > 0
        return
    assert 0 <= forecast.low_ns <= forecast.point_ns
    assert forecast.high_ns is None or forecast.point_ns <= forecast.high_ns
    if room <= 0:
        assert (forecast.low_ns, forecast.point_ns, forecast.high_ns) == (0, 0, 0)


@given(CURVES, st.integers(1, 1 << 40), st.integers(1, 16))
def test_it_does_not_depend_on_the_unit_of_memory(curve, room, power):
    # By a power of two, so that the two differ by nothing but the exponent of each float.
    scaled = time_to(room << power, growths_of([value << power for value in curve]))
    assert scaled == time_to(room, growths_of(curve))


@given(CURVES, st.integers(1, 1 << 40), st.integers(0, 1 << 50))
def test_only_growth_matters_not_what_was_there(curve, room, offset):
    assert time_to(room, growths_of([value + offset for value in curve])) == time_to(room, growths_of(curve))


@given(st.lists(st.integers(-(1 << 30), 0), min_size=1, max_size=60), st.integers(1, 1 << 40))
def test_what_never_rises_is_never_full(falls, room):
    curve = [1 << 40]
    for fall in falls:
        curve.append(curve[-1] + fall)
    assert time_to(room, growths_of(curve)) is None
