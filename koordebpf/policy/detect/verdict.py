"""A detector's answer and its reasons, and what keeps any feature from being judged, in koordlet's order."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.amount import PODS, Dimension, Resource, unit_of
from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.measured import TimeTo
from koordebpf.state.view import NodeView


class UseMoment(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is used and what there is of a resource, over some time, in its unit."""

    used: int
    of: int  # capacity, or what best-effort pods may have
    request: int | None = None  # BECPUEvict: what they ask for


class UseEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The use of a resource that a verdict rests on, in its unit; percents as configured.

    With `window_ns` it is an average, and `now` is the last sample. Of BECPUEvict the threshold is of what best-effort
    pods may have, the marks are of what they ask for.
    """

    resource: Resource
    of: int  # capacity, or what best-effort pods may have
    used: int
    used_percent: int | None = (
        None  # floor(used · 100 / of), Koordinator's integer rule; None: there is nothing to have
    )
    threshold_percent: int | None = None
    lower_percent: int | None = None
    threshold: int | None = None  # smallest usage that fires
    lower: int | None = None
    window_ns: int | None = None  # None: it is no average
    upper_percent: int | None = None  # BECPUEvict, as all below but `now`
    upper: int | None = None
    request: int | None = None
    now: UseMoment | None = None


class Need(msgspec.Struct, frozen=True):
    """What is too much of a resource, in its unit."""

    dimension: Dimension
    need: int  # to release to reach the lower mark, or the upper one of BECPUEvict
    now: int  # what is used, or requested
    of: int  # capacity, what is allocatable, or what best-effort pods may have


class StallEvidence(msgspec.Struct, frozen=True):
    """The figures a verdict on stalls rests on. Shares 0 to 1 of the time; seconds.

    `ratio` is known for certain and `at_most_ratio` the most that is possible, of the pods named; no name: no pod
    stalls. `above_s` is for how long `ratio` has been above `threshold_ratio` without a break; None: it is not above.
    `is_whole`: all waits for memory are timed here; else direct reclaim and compaction alone.
    """

    ratio: float
    at_most_ratio: float
    threshold_ratio: float
    above_s: float | None
    wanted_s: int  # for which it has to be above
    pod: str = ""
    at_most_pod: str = ""
    is_whole: bool = True


class Verdict(msgspec.Struct, frozen=True):
    """Whether a condition holds. `reason` is one sentence with both numbers, also where it does not fire.

    `skipped` is set (a short stable word for metrics) when the condition could not or must not be judged.
    """

    feature: str
    fires: bool
    reason: str
    skipped: str | None = None
    evidence: UseEvidence | None = None
    needs: tuple[Need, ...] = ()  # what to release to reach the lower mark; none unless it fires
    koordinator_need: int | None = None  # by Koordinator's floored percent; None: there is nothing to compare
    ahead: TimeTo | None = None  # it fires before the threshold, which will be crossed in this time
    stall: StallEvidence | None = None  # StallEvict; its need is what may be reclaimed at once, at most

    @property
    def amounts(self) -> dict[Dimension, int]:
        """Need by dimension."""
        return {need.dimension: need.need for need in self.needs}

    @property
    def need(self) -> int:
        """The sum of the needs: all are of one resource."""
        return sum(need.need for need in self.needs)

    @property
    def is_by_name(self) -> bool:
        """Whether pods are asked for by name: then pods are what is counted, and no amount is short."""
        return any(unit_of(need.dimension.resource) == PODS for need in self.needs)

    def is_for(self, resource: Resource) -> bool:
        """Tell whether it fires because this resource is short."""
        return any(need.dimension.resource == resource for need in self.needs)


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
