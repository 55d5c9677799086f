"""memoryEvictThresholdPercent in bytes: from which usage on the node is above its threshold."""

from __future__ import annotations

from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.threshold_rules import memory_evict_problem


def threshold_bytes(strategy: ResourceThresholdStrategy | None, capacity_bytes: int) -> int | None:
    """Return the smallest usage that fires, None where no usage does: off, unusable or no capacity."""
    if strategy is None or not strategy.enable or capacity_bytes <= 0 or memory_evict_problem(strategy) is not None:
        return None
    threshold = strategy.memoryEvictThresholdPercent
    return None if threshold is None else first_byte_at(threshold, capacity_bytes)


def first_byte_at(percent: int, of_bytes: int) -> int:
    """Return the smallest number of bytes that is at least `percent` of `of_bytes`."""
    # ⌊u·100/c⌋ ≥ p  ⇔  u·100 ≥ p·c  ⇔  u ≥ ⌈p·c/100⌉, for integers and c > 0.
    return -(-percent * of_bytes // 100)
