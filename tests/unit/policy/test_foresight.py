"""When an eviction is warned of, what becomes of the warning, and which pods would be first."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.decision.decide_tick import decided_again, tick_view
from koordebpf.policy.foresight import (
    NO_WARNING,
    EvictionWarningSettings,
    WarningMemory,
    WarningNews,
    first_victims,
    is_reached,
    next_warning,
)
from koordebpf.state.measured import TimeTo
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.rounds import tick_at

SETTINGS = EvictionWarningSettings()
Look = float | str | None  # seconds until the threshold, "short", or None: not in sight


def forecast(seconds: float) -> TimeTo:
    ns = int(seconds * NS_PER_S)
    return TimeTo(ns // 2, ns, None)


def news_of(
    looks: dict[float, Look], settings: EvictionWarningSettings = SETTINGS
) -> list[tuple[float, str, float | None]]:
    """Return the news of looks by second."""
    memory, found = WarningMemory(), []
    for second, look in looks.items():
        soon = forecast(look) if isinstance(look, float | int) else None
        now_ns = int(second * NS_PER_S)
        memory, news = next_warning(memory, now_ns, soon, settings, is_short=look == "short")
        if news is not None:
            found.append((second, news.kind, None if news.after_ns is None else news.after_ns / NS_PER_S))
    return found


@pytest.mark.parametrize(
    ("looks", "news"),
    [
        pytest.param({0: 60, 1: 30, 2: 21}, [], id="far off"),
        pytest.param({0: 19, 1: 18}, [(1, "warned", None)], id="two looks"),
        pytest.param({0: 19, 1: None, 2: 19, 3: 25, 4: 19}, [], id="one look each time"),
        pytest.param({0: 19, 0.2: 19, 0.4: 19}, [], id="looks too close together"),
        pytest.param({0: 19, 0.2: 19, 0.6: 18}, [(0.6, "warned", None)], id="half a second"),
        pytest.param(
            {0: 19, 1: 18, 10: 9, 19: "short", 20: "short"},
            [(1, "warned", None), (19, "came_true", 18)],
            id="came true",
        ),
        pytest.param({0: 60, 1: "short", 2: "short"}, [(1, "unforeseen", None)], id="unforeseen"),
        pytest.param({0: 19, 0.1: "short"}, [(0.1, "unforeseen", None)], id="too sudden for a warning"),
        pytest.param(
            {0: 19, 1: 18, 2: None, 62: None}, [(1, "warned", None), (62, "came_to_nothing", 61)], id="came to nothing"
        ),
        pytest.param({0: 19, 1: 18, 2: None, 61: None}, [(1, "warned", None)], id="not calm for long enough"),
        pytest.param(
            {0: 19, 1: 18, 2: None, 40: 39, 41: None, 100: None}, [(1, "warned", None)], id="calm was interrupted"
        ),
        pytest.param(
            {0: 19, 1: 18, 5: "short", 8: None, 9: 15, 10: 14, 12: "short", 20: None, 79: None},
            [(1, "warned", None), (5, "came_true", 4)],
            id="one warning in an episode",
        ),
        pytest.param(
            {0: 19, 1: 18, 5: "short", 8: None, 68: None, 69: 19, 70: 18},
            [(1, "warned", None), (5, "came_true", 4), (70, "warned", None)],
            id="and another one after calm",
        ),
        pytest.param(
            {0: "short", 1: None, 61: None, 62: 19, 63: 18},
            [(0, "unforeseen", None), (63, "warned", None)],
            id="a crossing without a warning begins an episode too",
        ),
    ],
)
def test_a_warning_and_what_becomes_of_it(
    looks: dict[float, Look], news: list[tuple[float, str, float | None]]
) -> None:
    assert news_of(looks) == news


def test_ahead_0_never_warns_and_counts_nothing() -> None:
    assert news_of({0: 1, 1: 0.5, 2: "short"}, NO_WARNING) == []


def test_another_time_ahead() -> None:
    assert news_of({0: 50, 1: 50}, EvictionWarningSettings(ahead_ns=50 * NS_PER_S)) == [(1, "warned", None)]


_LOOKS = st.lists(
    st.tuples(st.floats(0.004, 30), st.one_of(st.none(), st.just("short"), st.floats(0, 100))), max_size=80
)


@given(_LOOKS)
def test_each_warning_ends_once_and_no_two_come_within_the_calm(steps: list[tuple[float, Look]]) -> None:
    looks: dict[float, Look] = {}
    second = 0.0
    for after, look in steps:
        second += after
        looks[second] = look
    news = news_of(looks)
    kinds = [kind for _, kind, _ in news]
    ended = kinds.count("came_true") + kinds.count("came_to_nothing")
    assert kinds.count("warned") - 1 <= ended <= kinds.count("warned")
    warned = [at for at, kind, _ in news if kind == "warned"]
    assert all(b - a >= SETTINGS.calm_ns / NS_PER_S for a, b in pairwise(warned))
    open_warning = False
    for _, kind, after_s in news:
        if kind == "warned":
            assert not open_warning
            open_warning = True
        elif kind in ("came_true", "came_to_nothing"):
            assert open_warning
            assert after_s is not None
            open_warning = False
        else:
            assert not open_warning


def test_a_value_is_what_it_says() -> None:
    assert WarningNews("unforeseen").after_ns is None


def test_first_are_those_that_a_node_at_its_threshold_evicts() -> None:
    # GIVEN a node below its threshold of 800 MiB, and the same one at it
    below, at = tick_at(0, used_mib=500), tick_at(0, used_mib=800)
    assert is_reached(decided_again(below).plan) is False
    plan = decided_again(at).plan
    assert is_reached(plan)
    # THEN what is foreseen from below is what is decided there
    victims = first_victims(tick_view(below), below.settings.eviction)
    assert victims
    assert [each.candidate.name for each in victims] == [each.candidate.name for each in plan.victims]


def test_nothing_is_foreseen_of_a_node_without_a_threshold_or_usage() -> None:
    tick = tick_at(0)
    view = tick_view(tick)
    assert first_victims(replace(view, strategy=None), tick.settings.eviction) == ()
    assert first_victims(replace(view, used_bytes=None), tick.settings.eviction) == ()


def test_a_gate_that_is_off_judges_nothing() -> None:
    tick = tick_at(0)
    off = replace(tick, frame=replace(tick.frame, featureGates={"BEMemoryEvict": False}))
    assert is_reached(decided_again(off).plan) is None
    assert first_victims(tick_view(off), off.settings.eviction) == ()


def test_a_node_above_its_threshold_counts_as_it_is() -> None:
    tick = tick_at(0, used_mib=900)
    view = tick_view(tick)
    assert view.known_used_bytes == 900 * MIB
    plan = decided_again(tick).plan
    assert [each.candidate.uid for each in first_victims(view, tick.settings.eviction)] == [
        each.candidate.uid for each in plan.victims
    ]
