"""Koordinator's resourceUsedThresholdWithBE as one value.

Source: apis/slo/v1alpha1 ResourceThresholdStrategy. Every field may be absent, and absent is not zero.
"""

from __future__ import annotations

import msgspec


class ResourceThresholdStrategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """spec.resourceUsedThresholdWithBE of a NodeSLO; percents are 0…100 of the node's capacity."""

    enable: bool | None = None
    cpuSuppressThresholdPercent: int | None = None
    cpuSuppressMinPercent: int | None = None
    cpuSuppressPolicy: str | None = None
    memoryEvictThresholdPercent: int | None = None
    memoryEvictLowerPercent: int | None = None
    memoryAllocatableEvictThresholdPercent: int | None = None
    memoryAllocatableEvictLowerPercent: int | None = None
    cpuEvictBESatisfactionUpperPercent: int | None = None
    cpuEvictBESatisfactionLowerPercent: int | None = None
    cpuEvictBEUsageThresholdPercent: int | None = None
    cpuEvictTimeWindowSeconds: int | None = None
    cpuEvictThresholdPercent: int | None = None
    cpuEvictLowerPercent: int | None = None
    cpuAllocatableEvictThresholdPercent: int | None = None
    cpuAllocatableEvictLowerPercent: int | None = None
    cpuEvictPolicy: str | None = None
    evictEnabledPriorityThreshold: int | None = None
    allocatableEvictPriorityThreshold: int | None = None
