"""What makes a threshold strategy usable, in Koordinator's words."""

from __future__ import annotations

from koordebpf.slo.strategy import ResourceThresholdStrategy

# Why: koordlet's distance between threshold and lower mark where only the first is configured.
DEFAULT_LOWER_DISTANCE_PERCENT = 2


def memory_evict_problem(strategy: ResourceThresholdStrategy | None) -> str | None:
    """Return why BEMemoryEvict cannot work with these values, None where it can.

    Koordinator does not check that the threshold is at most 100: such a threshold is legal and never reached.

    Source: koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go, same order of checks, same texts.
    """
    if strategy is None:
        return "resourceThresholdStrategy not config"
    threshold = strategy.memoryEvictThresholdPercent
    if threshold is None:
        return "threshold percent is nil"
    if threshold < 0:
        return f"threshold percent({threshold}) should equal or greater than 0"
    lower = memory_evict_lower_percent(strategy)
    if lower is not None and lower >= threshold:
        return f"lower percent({lower}) should less than threshold percent({threshold})"
    return None


def memory_evict_lower_percent(strategy: ResourceThresholdStrategy) -> int | None:
    """Return the mark to evict down to: memoryEvictLowerPercent, else two below the threshold."""
    if strategy.memoryEvictLowerPercent is not None:
        return strategy.memoryEvictLowerPercent
    if strategy.memoryEvictThresholdPercent is None:
        return None
    return strategy.memoryEvictThresholdPercent - DEFAULT_LOWER_DISTANCE_PERCENT
