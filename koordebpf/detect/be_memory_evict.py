"""BEMemoryEvict: is the node's memory above the line at which best-effort pods have to go."""

from __future__ import annotations

from koordebpf.detect.verdict import Evidence, Verdict
from koordebpf.slo.strategy import ResourceThresholdStrategy
from koordebpf.slo.threshold_rules import memory_evict_lower_percent, memory_evict_problem
from koordebpf.state.view import NodeView
from koordebpf.units import format_bytes

FEATURE = "BEMemoryEvict"


def be_memory_evict(view: NodeView) -> Verdict:
    """Judge the node's memory by the strategy, in bytes.

    The need is counted from the usage itself down to the lower mark; Koordinator counts from its floored percent,
    which asks for up to one percent of the node less. Both are in the verdict.

    Fires if: used_bytes ≥ ⌈capacity_bytes · memoryEvictThresholdPercent / 100⌉, which holds exactly when Koordinator's
             ⌊used · 100 / capacity⌋ ≥ memoryEvictThresholdPercent does.
    Skips:   no_capacity, gate_off, no_strategy, enable_unset, disabled, invalid_config, in this order.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go.
    """
    strategy, capacity, used = view.strategy, view.capacity_bytes, view.used_bytes
    if capacity <= 0:
        return _skip("no_capacity", f"the node's memory capacity is {capacity}")
    if not view.feature_gates.get(FEATURE, False):
        return _skip("gate_off", f"feature gate {FEATURE} is off")
    if strategy is None:
        return _skip("no_strategy", "no NodeSLO and no slo-controller-config is known")
    if strategy.enable is None:
        return _skip("enable_unset", "resourceUsedThresholdWithBE.enable is not set")
    if not strategy.enable:
        return _skip("disabled", "resourceUsedThresholdWithBE.enable is false")
    problem = memory_evict_problem(strategy)
    threshold, lower = strategy.memoryEvictThresholdPercent, memory_evict_lower_percent(strategy)
    if problem is not None or threshold is None or lower is None:
        return _skip("invalid_config", f"resourceUsedThresholdWithBE is unusable: {problem}")

    used_percent = used * 100 // capacity
    evidence = Evidence(
        capacity_bytes=capacity,
        used_bytes=used,
        used_percent=used_percent,
        threshold_percent=threshold,
        lower_percent=lower,
        threshold_bytes=_first_byte_at(threshold, capacity),
        # Below threshold 2 the default lower mark is negative; nothing can be used less than not at all.
        lower_bytes=max(capacity * lower // 100, 0),
    )
    if used < _first_byte_at(threshold, capacity):
        return Verdict(FEATURE, False, f"node at {used_percent} % < {threshold} %", evidence=evidence)
    need = used - max(capacity * lower // 100, 0)
    return Verdict(
        feature=FEATURE,
        fires=True,
        reason=f"node at {used_percent} % ≥ {threshold} %, need {format_bytes(need)} to reach {max(lower, 0)} %",
        need_bytes=need,
        koordinator_need_bytes=capacity * (used_percent - lower) // 100,
        evidence=evidence,
    )


def threshold_bytes(strategy: ResourceThresholdStrategy | None, capacity_bytes: int) -> int | None:
    """Return the smallest usage that fires, None where no usage does: off, unusable or no capacity."""
    if strategy is None or not strategy.enable or capacity_bytes <= 0 or memory_evict_problem(strategy) is not None:
        return None
    threshold = strategy.memoryEvictThresholdPercent
    return None if threshold is None else _first_byte_at(threshold, capacity_bytes)


def _first_byte_at(percent: int, capacity_bytes: int) -> int:
    # ⌊u·100/c⌋ ≥ p  ⇔  u·100 ≥ p·c  ⇔  u ≥ ⌈p·c/100⌉, for integers and c > 0.
    return -(-percent * capacity_bytes // 100)


def _skip(word: str, reason: str) -> Verdict:
    return Verdict(FEATURE, False, reason, skipped=word)
