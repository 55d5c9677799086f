"""What keeps any feature of resourceUsedThresholdWithBE from being judged, in koordlet's order."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.policy.detect.verdict import Verdict
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.view import NodeView


def skipped(
    view: NodeView, feature: str, problem_of: Callable[[ResourceThresholdStrategy], str | None]
) -> Verdict | None:
    """Return why the feature is not judged, None where it is.

    Skips:   no_capacity, gate_off, no_strategy, enable_unset, disabled, invalid_config, in this order.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go, helpers IsFeatureDisabled.
    """
    if view.capacity_bytes <= 0:
        return skip(feature, "no_capacity", f"the node's memory capacity is {view.capacity_bytes}")
    return _skipped_by_strategy(view, feature, problem_of)


def skipped_cpu(
    view: NodeView, feature: str, problem_of: Callable[[ResourceThresholdStrategy], str | None]
) -> Verdict | None:
    """Return why a feature that judges CPU is not judged, None where it is.

    Skips:   unmeasured, then as `skipped`.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go.
    """
    if view.cpu is None:
        return skip(feature, "unmeasured", "the node's CPUs were not measured")
    if view.cpu.capacity_millicpu <= 0:
        return skip(feature, "no_capacity", f"the node's CPU capacity is {view.cpu.capacity_millicpu}")
    return _skipped_by_strategy(view, feature, problem_of)


def has_window(window: CpuWindow) -> bool:
    """Tell whether enough of the window has samples to judge by it: a third, as in koordlet."""
    return window.covered_ns * 3 >= window.window_ns


def _skipped_by_strategy(
    view: NodeView, feature: str, problem_of: Callable[[ResourceThresholdStrategy], str | None]
) -> Verdict | None:
    strategy = view.strategy
    if not view.feature_gates.get(feature, False):
        return skip(feature, "gate_off", f"feature gate {feature} is off")
    if strategy is None:
        return skip(feature, "no_strategy", "no NodeSLO and no slo-controller-config is known")
    if strategy.enable is None:
        return skip(feature, "enable_unset", "resourceUsedThresholdWithBE.enable is not set")
    if not strategy.enable:
        return skip(feature, "disabled", "resourceUsedThresholdWithBE.enable is false")
    if (problem := problem_of(strategy)) is not None:
        return skip(feature, "invalid_config", f"resourceUsedThresholdWithBE is unusable: {problem}")
    return None


def skip(feature: str, word: str, reason: str) -> Verdict:
    """Return the verdict of a feature that is not judged."""
    return Verdict(feature, False, reason, skipped=word)
