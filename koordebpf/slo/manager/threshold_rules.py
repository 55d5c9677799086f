"""What Koordinator's webhook asks of the values of resource-threshold-config: ranges, pairs, words.

Source: koordinator pkg/webhook/cm/plugins/sloconfig/resource_threshold_checker.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

Broken = tuple[str, Any, str]  # path, value, rule

_PERCENTS = (
    "cpuSuppressThresholdPercent",
    "cpuSuppressMinPercent",
    "memoryEvictThresholdPercent",
    "memoryEvictLowerPercent",
    "cpuEvictBESatisfactionUpperPercent",
    "cpuEvictBESatisfactionLowerPercent",
    "cpuEvictBEUsageThresholdPercent",
    "cpuEvictThresholdPercent",
    "cpuEvictLowerPercent",
)
# Field → lowest, highest.
_RANGES: Mapping[str, tuple[int, int | None]] = {
    **dict.fromkeys(_PERCENTS, (0, 100)),
    "memoryAllocatableEvictThresholdPercent": (0, None),
    "memoryAllocatableEvictLowerPercent": (0, None),
    "cpuAllocatableEvictThresholdPercent": (0, None),
    "cpuAllocatableEvictLowerPercent": (0, None),
    "cpuEvictTimeWindowSeconds": (1, None),
    "allocatableEvictPriorityThreshold": (0, 7999),
}
# The first must be greater than the second.
PAIRS = (
    ("memoryEvictThresholdPercent", "memoryEvictLowerPercent"),
    ("memoryAllocatableEvictThresholdPercent", "memoryAllocatableEvictLowerPercent"),
    ("cpuEvictBESatisfactionUpperPercent", "cpuEvictBESatisfactionLowerPercent"),
    ("cpuEvictThresholdPercent", "cpuEvictLowerPercent"),
    ("cpuAllocatableEvictThresholdPercent", "cpuAllocatableEvictLowerPercent"),
)
_POLICIES = {
    "cpuSuppressPolicy": ("cpuset", "cfsQuota"),
    "cpuEvictPolicy": ("evictByRealLimit", "evictByAllocatable"),
}


def broken_threshold_rules(strategy: ResourceThresholdStrategy, path: str) -> Iterator[Broken]:
    """Yield what is wrong with one strategy; a pair of which one is absent is none."""
    for name, (lowest, highest) in _RANGES.items():
        value = getattr(strategy, name)
        if value is not None and (value < lowest or (highest is not None and value > highest)):
            rule = f"must be {lowest} or more" if highest is None else f"must be {lowest}…{highest}"
            yield f"{path}.{name}", value, rule
    for name, lower_name in PAIRS:
        value, lower = getattr(strategy, name), getattr(strategy, lower_name)
        if value is not None and lower is not None and value <= lower:
            yield f"{path}.{name}", value, f"must be greater than {lower_name} ({lower})"
    for name, known in _POLICIES.items():
        value = getattr(strategy, name)
        if value is not None and value not in known:
            yield f"{path}.{name}", value, f"must be one of {', '.join(known)}"
