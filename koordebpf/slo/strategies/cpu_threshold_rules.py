"""What makes a threshold strategy usable for CPU eviction, in Koordinator's words where it has them."""

from __future__ import annotations

from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.threshold_rules import (
    DEFAULT_LOWER_DISTANCE_PERCENT,
    allocatable_percents,
    allocatable_problem,
    unwritten,
)

DEFAULT_BE_USAGE_THRESHOLD_PERCENT = 90  # koordlet's, where cpuEvictBEUsageThresholdPercent is absent
HIGHEST_SATISFACTION_LOWER_PERCENT = 60  # koordlet's
BY_ALLOCATABLE = "evictByAllocatable"  # cpuEvictPolicy; anything else uses the real limit


def be_cpu_evict_problem(strategy: ResourceThresholdStrategy) -> str | None:
    """Return why BECPUEvict cannot work with these values, None where it can.

    Equal percents are allowed, as in koordlet; its webhook asks for a higher upper one.

    Source: koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go.
    """
    lower, upper = strategy.cpuEvictBESatisfactionLowerPercent, strategy.cpuEvictBESatisfactionUpperPercent
    if lower is None or upper is None:
        return "CPUEvictBESatisfactionLowerPercent or CPUEvictBESatisfactionUpperPercent not config"
    if not 0 < lower <= HIGHEST_SATISFACTION_LOWER_PERCENT:
        return (
            f"CPUEvictBESatisfactionLowerPercent({lower}) is not valid! must (0,{HIGHEST_SATISFACTION_LOWER_PERCENT}]"
        )
    if not 0 < upper < 100:
        return f"CPUEvictBESatisfactionUpperPercent({upper}) is not valid,must (0,100)"
    if upper < lower:
        return f"CPUEvictBESatisfactionUpperPercent({upper}) < CPUEvictBESatisfactionLowerPercent({lower})"
    return None


def cpu_evict_problem(strategy: ResourceThresholdStrategy) -> str | None:
    """Return why CPUEvict cannot work with these values, None where it can.

    Source: as above.
    """
    threshold, lower = strategy.cpuEvictThresholdPercent, cpu_evict_lower_percent(strategy)
    if threshold is None or lower is None:
        return "CPUEvictThresholdPercent not config"
    if threshold < 0:
        return f"threshold percent({threshold}) should greater than 0"
    if lower >= threshold:
        return f"lower percent({lower}) should less than threshold percent({threshold})"
    if strategy.evictEnabledPriorityThreshold is None:
        return "EvictEnabledPriorityThreshold not config"
    return None


def cpu_evict_lower_percent(strategy: ResourceThresholdStrategy) -> int | None:
    """Return the mark to evict down to: cpuEvictLowerPercent, else two below the threshold."""
    if strategy.cpuEvictLowerPercent is not None:
        return strategy.cpuEvictLowerPercent
    threshold = strategy.cpuEvictThresholdPercent
    return None if threshold is None else threshold - DEFAULT_LOWER_DISTANCE_PERCENT


def cpu_allocatable_problem(strategy: ResourceThresholdStrategy) -> str | None:
    """Return why CPUAllocatableEvict cannot work with these values, None where it can.

    Thresholds that are absent have the defaults that the API's comments promise, as with memory.

    Source: as above.
    """
    return allocatable_problem(cpu_allocatable_percents(strategy), strategy, "equal or greater than 0")


def cpu_allocatable_problem_unless_written(strategy: ResourceThresholdStrategy) -> str | None:
    """Return the same as Koordinator does it: nothing that is absent has a default."""
    threshold, lower = strategy.cpuAllocatableEvictThresholdPercent, strategy.cpuAllocatableEvictLowerPercent
    return unwritten("CPU", threshold, lower, strategy, cpu_allocatable_problem(strategy))


def cpu_allocatable_percents(strategy: ResourceThresholdStrategy) -> tuple[int, int]:
    """Return threshold and lower mark of what is requested, in percent of what is allocatable."""
    return allocatable_percents(strategy.cpuAllocatableEvictThresholdPercent, strategy.cpuAllocatableEvictLowerPercent)


def cpu_window_s(strategy: ResourceThresholdStrategy | None) -> int:
    """Return over how many seconds CPU eviction averages; where the strategy is silent one, koordlet's interval."""
    written = strategy.cpuEvictTimeWindowSeconds if strategy is not None else None
    return max(written or 1, 1)
