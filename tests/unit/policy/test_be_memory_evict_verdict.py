from __future__ import annotations

import pytest

from koordebpf.policy.detect.be_memory_evict import be_memory_evict
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy, threshold_bytes
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.view import NodeView
from tests.support.values.builders import view_of_measured


def _view(used: int, capacity: int, *, gates: dict[str, bool] | None = None, **strategy: object) -> NodeView:
    node = NodeMeasure(scope="machine", total_bytes=max(capacity, 0), used_bytes=used)
    return view_of_measured(
        Measured(0, 0, node),
        strategy=ResourceThresholdStrategy(**strategy) if strategy else None,
        gates={"BEMemoryEvict": True} if gates is None else gates,
    )


@pytest.mark.parametrize(
    ("threshold", "lower", "koordinator_need"),
    [(80, None, 20_400_000_000), (82, 74, 25_200_000_000)],
)
def test_koordinators_own_examples(threshold, lower, koordinator_need):
    view = _view(
        115 * 10**9, 120 * 10**9, enable=True, memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=lower
    )
    verdict = be_memory_evict(view)
    assert verdict.fires
    assert verdict.evidence is not None
    assert verdict.evidence.used_percent == 95
    assert verdict.koordinator_need == koordinator_need
    assert verdict.need == 115 * 10**9 - 120 * 10**9 * (lower or threshold - 2) // 100


def test_the_floor_keeps_69_99_percent_below_70():
    on = {"enable": True, "memoryEvictThresholdPercent": 70}
    assert not be_memory_evict(_view(6999, 10_000, **on)).fires
    assert be_memory_evict(_view(7000, 10_000, **on)).fires
    assert threshold_bytes(ResourceThresholdStrategy(**on), 10_000) == 7000
    assert threshold_bytes(ResourceThresholdStrategy(**on), 10_001) == 7001


@pytest.mark.parametrize(
    ("view", "word"),
    [
        (_view(9, 0, enable=True, memoryEvictThresholdPercent=1), "no_capacity"),
        (_view(9, -1, enable=True, memoryEvictThresholdPercent=1), "no_capacity"),
        (_view(9, 10, gates={}, enable=True, memoryEvictThresholdPercent=1), "gate_off"),
        (_view(9, 10, gates={"BEMemoryEvict": False, "MemoryEvict": True}, enable=True), "gate_off"),
        (_view(9, 10), "no_strategy"),
        (_view(9, 10, memoryEvictThresholdPercent=1), "enable_unset"),
        (_view(9, 10, enable=False, memoryEvictThresholdPercent=1), "disabled"),
        (_view(9, 10, enable=True), "invalid_config"),
        (_view(9, 10, enable=True, memoryEvictThresholdPercent=5, memoryEvictLowerPercent=5), "invalid_config"),
    ],
)
def test_what_cannot_be_judged_is_skipped_with_a_word(view, word):
    verdict = be_memory_evict(view)
    assert (verdict.fires, verdict.skipped, verdict.need) == (False, word, 0)
    assert verdict.reason
    if word != "gate_off":
        assert threshold_bytes(view.strategy, view.capacity_bytes) is None


def test_threshold_zero_wants_everything_back():
    verdict = be_memory_evict(_view(40, 100, enable=True, memoryEvictThresholdPercent=0))
    assert (verdict.fires, verdict.need) == (True, 40)


def test_a_threshold_above_100_is_never_reached():
    assert not be_memory_evict(_view(100, 100, enable=True, memoryEvictThresholdPercent=101)).fires
