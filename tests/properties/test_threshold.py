"""The percent rule in bytes is Koordinator's rule in percents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.policy.detect.be_memory_evict import FEATURE, be_memory_evict
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy, threshold_bytes
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.view import NodeView
from tests.support.values.builders import view_of_measured

CAPACITY = st.integers(1, 1 << 50)


def _view(used: int, capacity: int, strategy: ResourceThresholdStrategy) -> NodeView:
    measure = NodeMeasure(scope="machine", total_bytes=capacity, used_bytes=used)
    return view_of_measured(Measured(0, 0, measure), strategy=strategy, gates={FEATURE: True})


@st.composite
def _near(draw: st.DrawFn) -> tuple[int, int, int]:
    # Usages a few bytes around the line, where a rounding error would show.
    capacity, threshold = draw(CAPACITY), draw(st.integers(0, 120))
    used = max(capacity * threshold // 100 + draw(st.integers(-3, 3)), 0)
    return used, capacity, threshold


@given(st.one_of(_near(), st.tuples(st.integers(0, 1 << 51), CAPACITY, st.integers(0, 120))))
def test_fires_exactly_when_the_floored_percent_reaches_the_threshold(case):
    used, capacity, threshold = case
    strategy = ResourceThresholdStrategy(enable=True, memoryEvictThresholdPercent=threshold)
    verdict = be_memory_evict(_view(used, capacity, strategy))
    assert verdict.fires == (used * 100 // capacity >= threshold)
    assert verdict.fires == (used >= threshold_bytes(strategy, capacity))


@given(st.integers(0, 1 << 51), CAPACITY, st.integers(1, 100), st.data())
def test_freeing_the_need_reaches_the_lower_mark_and_not_a_byte_less(used, capacity, threshold, data):
    lower = data.draw(st.integers(0, threshold - 1))
    strategy = ResourceThresholdStrategy(
        enable=True, memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=lower
    )
    verdict = be_memory_evict(_view(used, capacity, strategy))
    if verdict.fires:
        assert (used - verdict.need) * 100 <= capacity * lower < (used - verdict.need + 1) * 100
        assert verdict.koordinator_need == capacity * (used * 100 // capacity - lower) // 100
        # Koordinator's three floors ask for less: under one percent of the node and two bytes.
        assert verdict.need >= verdict.koordinator_need
        assert (verdict.need - verdict.koordinator_need - 2) * 100 < capacity
    else:
        assert verdict.need == 0
