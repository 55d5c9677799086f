"""Acting before the threshold is crossed: only when configured, only while it grows, and never on hope alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.measured import NodeForecast, TimeTo
from koordebpf.state.view import Frame
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S
from tests.support.values.builders import feature_of, frame, names, plan_of, pod

AHEAD = EvictSettings(act_ahead_ns=5 * NS_PER_S)
SOON = TimeTo(1 * NS_PER_S, 2 * NS_PER_S, 4 * NS_PER_S)


def growing(forecast: TimeTo | None = SOON, *, used: int = 790, growth: float | None = 5.0 * MIB) -> Frame:
    recorded = frame([pod("hog", anon=300), pod("idle", anon=10)], used=used)
    node = replace(recorded.measured.node, forecast=NodeForecast(threshold=forecast), growth_bytes_per_s=growth)
    return replace(recorded, measured=replace(recorded.measured, node=node))


def test_it_acts_when_even_the_slow_end_is_sooner_than_the_action_takes():
    feature = feature_of(growing(), AHEAD)
    assert names(feature) == ["hog"]
    assert feature.verdict.ahead == SOON
    # From the threshold, at which the node will be then, down to the lower mark.
    assert feature.balance.need == 20 * MIB
    assert plan_of(growing(), AHEAD).sentence == (
        "evicting spark/hog (priority 5000, 300 MiB): node at 79 % < 80 %, but there in 2 s (1 s to 4 s): acting ahead"
        " of it, need 20.0 MiB to reach 78 %"
    )


@pytest.mark.parametrize(
    ("forecast", "growth"),
    [
        (None, 1.0),  # it does not grow
        (TimeTo(0, NS_PER_S, 5 * NS_PER_S), 1.0),  # at the slow end it is not sooner
        (TimeTo(0, NS_PER_S, None), 1.0),  # at the slow end never
        (SOON, 0.0),
        (SOON, -1.0),
    ],
)
def test_it_waits_otherwise(forecast, growth):
    feature = feature_of(growing(forecast, growth=growth), AHEAD)
    assert (feature.victims, feature.verdict.fires, feature.verdict.ahead) == ((), False, None)
    assert feature.verdict.reason == "node at 79 % < 80 %"


def test_it_is_off_by_default_and_for_what_pods_request():
    assert feature_of(growing()).victims == ()
    allocatable = replace(growing(), featureGates={"MemoryAllocatableEvict": True})
    assert plan_of(allocatable, AHEAD).victims == ()


def test_above_the_threshold_it_changes_nothing():
    node = growing(TimeTo(0, 0, 0), used=850)
    assert plan_of(node, AHEAD) == plan_of(node)
    assert feature_of(node, AHEAD).verdict.ahead is None


def test_acting_ahead_never_asks_for_more_than_the_crossing_would():
    at_the_line = feature_of(growing(TimeTo(0, 0, 0), used=800)).balance.need
    for used in (700, 790, 799):
        assert feature_of(growing(TimeTo(1, NS_PER_MS, NS_PER_MS), used=used), AHEAD).balance.need == at_the_line
