"""When it will be full."""

from __future__ import annotations

from itertools import pairwise

import pytest

from koordebpf.state.forecast import GrowthHistory, time_to
from koordebpf.state.measured import TimeTo
from koordebpf.units import GIB, MIB, NS_PER_MS

S = 1_000_000_000


def history_of(*values: int, step_ns: int = S) -> GrowthHistory[str]:
    history: GrowthHistory[str] = GrowthHistory(shortest_ns=step_ns)
    for at, value in enumerate(values):
        history.push((at + 1) * step_ns, {"x": value})
    return history


def ahead(room: int, *values: int, stalled_ratio: float = 0.0) -> TimeTo | None:
    return time_to(room, history_of(*values).growths("x"), stalled_ratio)


def test_a_ramp_ends_when_it_says() -> None:
    assert ahead(300 * MIB, *(at * 10 * MIB for at in range(40))) == TimeTo(30 * S, 30 * S, 30 * S)


def test_what_does_not_grow_has_no_end() -> None:
    assert ahead(GIB, *[5] * 40) is None
    assert ahead(GIB, *range(40 * MIB, 0, -MIB)) is None
    assert ahead(GIB, 7) is None
    assert time_to(GIB, []) is None


def test_what_is_a_day_off_is_no_forecast() -> None:
    assert ahead(1 << 50, *range(40)) is None


@pytest.mark.parametrize("room", [0, -5])
def test_what_is_full_is_full(room: int) -> None:
    assert ahead(room, 5, 5) == TimeTo(0, 0, 0)


def test_a_step_is_over_after_a_while() -> None:
    flat, up = [GIB] * 60, [2 * GIB] * 200
    assert ahead(GIB, *flat, *up[:2]) is not None
    assert ahead(GIB, *flat, *up) is None


def test_the_teeth_of_a_saw_do_not_hide_its_slope() -> None:
    # Up by 30 MiB a second and down again each fourth second: 20 MiB more every 4 s.
    teeth = [tooth * 20 * MIB + phase * 30 * MIB for tooth in range(60) for phase in range(4)]
    for end in range(200, 240):
        forecast = ahead(2000 * MIB, *teeth[:end])
        assert forecast is not None
        assert 280 * S <= forecast.point_ns <= 520 * S  # 400 s but for the tooth it stands on
        assert forecast.low_ns <= 400 * S
        assert forecast.high_ns is None or forecast.high_ns >= 380 * S


def test_growth_that_reclaim_holds_back_may_be_faster_without() -> None:
    ramp = [at * 10 * MIB for at in range(40)]
    forecast = ahead(300 * MIB, *ramp, stalled_ratio=0.5)
    assert forecast == TimeTo(15 * S, 30 * S, 30 * S)
    assert ahead(300 * MIB, *ramp, stalled_ratio=7.0).low_ns > 0


def test_a_fast_ramp_is_followed_within_milliseconds() -> None:
    history: GrowthHistory[str] = GrowthHistory(shortest_ns=8 * NS_PER_MS)
    for at in range(1000):
        history.push(at * 10 * NS_PER_MS, {"x": GIB})
    for at in range(1, 11):
        history.push((999 + at) * 10 * NS_PER_MS, {"x": GIB + at * 30 * MIB})  # 3000 MiB/s
    forecast = time_to(600 * MIB, history.growths("x"))
    assert forecast is not None
    assert forecast.low_ns <= 200 * NS_PER_MS <= forecast.point_ns <= 400 * NS_PER_MS


def test_samples_thin_out_with_age_but_every_window_keeps_its_begin() -> None:
    history: GrowthHistory[str] = GrowthHistory(shortest_ns=8 * NS_PER_MS)
    for at in range(60_000):
        history.push(at * 10 * NS_PER_MS, {"x": at})
    assert len(history) < 250
    spans = [span_s for span_s, _ in history.growths("x")]
    assert spans[0] == 0.01
    assert 256 <= spans[-1] <= 512
    assert all(1.5 < later / sooner < 3 for sooner, later in pairwise(spans))
    assert all(grown == round(span_s * 100) for span_s, grown in history.growths("x"))


def test_a_sample_that_follows_too_closely_is_not_needed() -> None:
    history: GrowthHistory[str] = GrowthHistory(shortest_ns=S)
    history.push(S, {"x": 1})
    assert not history.is_due(S + S // 2)
    history.push(S + S // 2, {"x": 2})
    assert len(history) == 1


def test_who_was_born_later_has_windows_since_then() -> None:
    history: GrowthHistory[str] = GrowthHistory(shortest_ns=S)
    for at in range(20):
        history.push(at * S, {"x": at, **({"y": at} if at > 15 else {})})
    assert [span_s for span_s, _ in history.growths("y")] == [1, 2]
    assert history.growths("z") == []


def test_the_soonest_are_found() -> None:
    history: GrowthHistory[str] = GrowthHistory(shortest_ns=S)
    for at in range(20):
        history.push(at * S, {"slow": at * MIB, "fast": at * 9 * MIB, "flat": GIB, "near": at * MIB})
    rooms = {"slow": GIB, "fast": GIB, "flat": MIB, "near": 10 * MIB}
    assert history.soonest(rooms, 2) == ["near", "fast"]
    assert set(history.soonest(rooms, 9)) == {"near", "fast", "slow"}
    assert GrowthHistory[str]().soonest({}, 3) == []
