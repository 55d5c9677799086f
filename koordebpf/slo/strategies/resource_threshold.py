"""Koordinator's resourceUsedThresholdWithBE as one value, and what makes it usable, in Koordinator's words.

Source: apis/slo/v1alpha1 ResourceThresholdStrategy. Every field may be absent, and absent is not zero.
"""

from __future__ import annotations

import msgspec

DEFAULT_BE_USAGE_THRESHOLD_PERCENT = 90  # koordlet's, where cpuEvictBEUsageThresholdPercent is absent
HIGHEST_SATISFACTION_LOWER_PERCENT = 60  # koordlet's
BY_ALLOCATABLE = "evictByAllocatable"  # cpuEvictPolicy; anything else uses the real limit
# Why: koordlet's distance between threshold and lower mark where only the first is configured.
DEFAULT_LOWER_DISTANCE_PERCENT = 2
# Source: apis/slo/v1alpha1/nodeslo_types.go, the comments of the fields.
DEFAULT_ALLOCATABLE_THRESHOLD_PERCENT = 110
DEFAULT_ALLOCATABLE_LOWER_PERCENT = 100
DEFAULT_ALLOCATABLE_PRIORITY = 5999
HIGHEST_MID_PRIORITY = 7999


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


def evict_by_priority_problem(strategy: ResourceThresholdStrategy | None) -> str | None:
    """Return why MemoryEvict cannot work with these values, None where it can: as BEMemoryEvict, and a priority.

    There is no upper bound: a value of 9500 or more reaches prod pods that let themselves be evicted.
    """
    if (problem := memory_evict_problem(strategy)) is not None or strategy is None:
        return problem
    if strategy.evictEnabledPriorityThreshold is None:
        return "EvictEnabledPriorityThreshold not config"
    return None


def memory_allocatable_problem(strategy: ResourceThresholdStrategy | None) -> str | None:
    """Return why MemoryAllocatableEvict cannot work with these values, None where it can.

    Source: as above, same order of checks, same texts; but values that are absent have the defaults that the API's
    comments promise and nothing in Koordinator applies: 110, 100 and 5999.
    """
    if strategy is None:
        return "ResourceThresholdStrategy not config"
    return allocatable_problem(memory_allocatable_percents(strategy), strategy, "greater than 0")


def allocatable_problem(percents: tuple[int, int], strategy: ResourceThresholdStrategy, least: str) -> str | None:
    """Return what is wrong with threshold and lower mark of what is requested, or with the highest evictable priority.

    `least` is how Koordinator's text says that a threshold may not be negative: of memory and CPU differently.
    """
    threshold, lower = percents
    if threshold < 0:
        return f"threshold percent({threshold}) should {least}"
    if lower >= threshold:
        return f"lower percent({lower}) should less than threshold percent({threshold})"
    priority = strategy.allocatableEvictPriorityThreshold
    if priority is not None and priority > HIGHEST_MID_PRIORITY:
        return (
            f"priorityThresholdPercent({priority}) should less than {HIGHEST_MID_PRIORITY}, "
            "koor-prod pods should not be killed"
        )
    return None


def memory_allocatable_problem_unless_written(strategy: ResourceThresholdStrategy | None) -> str | None:
    """Return the same as Koordinator does it: nothing that is absent has a default."""
    if strategy is None:
        return memory_allocatable_problem(strategy)
    threshold, lower = strategy.memoryAllocatableEvictThresholdPercent, strategy.memoryAllocatableEvictLowerPercent
    return unwritten("Memory", threshold, lower, strategy, memory_allocatable_problem(strategy))


def unwritten(
    resource: str, threshold: int | None, lower: int | None, strategy: ResourceThresholdStrategy, problem: str | None
) -> str | None:
    """Return what is absent of what an allocatable feature needs, in Koordinator's order; else `problem`."""
    if threshold is None:
        return f"{resource}AllocatableEvictThresholdPercent not config"
    if threshold >= 0 and lower is None:
        return f"{resource}AllocatableEvictLowerPercent not config"
    if problem is None and strategy.allocatableEvictPriorityThreshold is None:
        return "AllocatableEvictPriorityThreshold not config"
    return problem


def memory_allocatable_percents(strategy: ResourceThresholdStrategy) -> tuple[int, int]:
    """Return threshold and lower mark of what is requested, in percent of what is allocatable."""
    return allocatable_percents(
        strategy.memoryAllocatableEvictThresholdPercent, strategy.memoryAllocatableEvictLowerPercent
    )


def allocatable_percents(threshold: int | None, lower: int | None) -> tuple[int, int]:
    """Return both with the defaults that the API's comments promise."""
    return (
        DEFAULT_ALLOCATABLE_THRESHOLD_PERCENT if threshold is None else threshold,
        DEFAULT_ALLOCATABLE_LOWER_PERCENT if lower is None else lower,
    )


def allocatable_priority(strategy: ResourceThresholdStrategy) -> int:
    """Return the highest priority that both AllocatableEvict features may evict; absent: the top of koord-batch."""
    priority = strategy.allocatableEvictPriorityThreshold
    return DEFAULT_ALLOCATABLE_PRIORITY if priority is None else priority
