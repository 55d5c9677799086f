"""Is the node's memory use above the threshold: what BEMemoryEvict and MemoryEvict both ask."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.policy.detect.verdict import Need, UseEvidence, Verdict, skip, skipped
from koordebpf.slo.strategies.resource_threshold import (
    ResourceThresholdStrategy,
    first_byte_at,
    memory_evict_lower_percent,
)
from koordebpf.state.amount import MEMORY, USED
from koordebpf.state.measured import TimeTo
from koordebpf.state.view import NodeView
from koordebpf.units import format_bytes, format_ns


def used_memory(
    view: NodeView,
    feature: str,
    problem_of: Callable[[ResourceThresholdStrategy], str | None],
    ahead_ns: int = 0,
    *,
    by_percent: bool = False,
) -> Verdict:
    """Judge the node's memory by the strategy, in bytes.

    The need is counted from the usage itself down to the lower mark; Koordinator counts from its floored percent,
    which asks for up to one percent of the node less. Both are in the verdict, and with `by_percent` its count is the
    need. Ahead of the threshold the need is counted from the threshold itself, which is what will be used then.

    Fires if: used_bytes ≥ ⌈capacity_bytes · memoryEvictThresholdPercent / 100⌉, which holds exactly when Koordinator's
             ⌊used · 100 / capacity⌋ ≥ memoryEvictThresholdPercent does. With `ahead_ns` also if the node grows
             and is forecast to be there within that time even at the slow end of the forecast.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go.
    """
    if (unjudged := skipped(view, feature, problem_of)) is not None:
        return unjudged
    strategy, capacity, used = view.strategy, view.capacity_bytes, view.used_bytes
    threshold = strategy.memoryEvictThresholdPercent if strategy else None
    lower = memory_evict_lower_percent(strategy) if strategy else None
    if threshold is None or lower is None:  # `problem_of` has reported it
        return skip(feature, "invalid_config", "memoryEvictThresholdPercent is not set")
    if used is None:
        return skip(feature, "unknown_usage", "the node's memory usage is not known")
    used_percent = used * 100 // capacity
    evidence = UseEvidence(
        MEMORY,
        of=capacity,
        used=used,
        used_percent=used_percent,
        threshold_percent=threshold,
        lower_percent=lower,
        threshold=first_byte_at(threshold, capacity),
        # Below threshold 2 the default lower mark is negative; nothing can be used less than not at all.
        lower=max(capacity * lower // 100, 0),
    )
    first = first_byte_at(threshold, capacity)
    ahead = None
    if used >= first:
        said = f"node at {used_percent} % ≥ {threshold} %"
    elif (ahead := _ahead(view, ahead_ns)) is not None:
        said = f"node at {used_percent} % < {threshold} %, but there {_when(ahead)}: acting ahead of it"
    else:
        return Verdict(feature, False, f"node at {used_percent} % < {threshold} %", evidence=evidence)
    koordinator_need = 0 if ahead else capacity * (used_percent - lower) // 100
    need = koordinator_need if by_percent and not ahead else max(used, first) - max(capacity * lower // 100, 0)
    return Verdict(
        feature=feature,
        fires=True,
        reason=f"{said}, need {format_bytes(need)} to reach {max(lower, 0)} %",
        evidence=evidence,
        needs=(Need(USED, need, used, capacity),),
        koordinator_need=koordinator_need,
        ahead=ahead,
    )


# When the threshold will be crossed, if that is sooner than the action takes; None without growth.
def _ahead(view: NodeView, ahead_ns: int) -> TimeTo | None:
    found = view.forecast.threshold if view.forecast else None
    growth = view.measured.node.growth_bytes_per_s
    if found is None or found.high_ns is None or found.high_ns >= ahead_ns or (growth is not None and growth <= 0):
        return None
    return found


def _when(time: TimeTo) -> str:
    high = "" if time.high_ns is None else f" to {format_ns(time.high_ns)}"
    return f"in {format_ns(time.point_ns)} ({format_ns(time.low_ns)}{high})"
