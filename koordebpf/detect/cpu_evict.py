"""CPUEvict: does the node use more CPU than the line above which pods go by their priority."""

from __future__ import annotations

from koordebpf.detect.strategy_gate import has_window, skip, skipped_cpu
from koordebpf.detect.verdict import USED_CPU, CpuEvidence, CpuNeed, Verdict
from koordebpf.slo.cpu_threshold_rules import cpu_evict_lower_percent, cpu_evict_problem
from koordebpf.state.view import NodeView
from koordebpf.units import format_millicpu

FEATURE = "CPUEvict"


def cpu_evict(view: NodeView, *, by_percent: bool = False) -> Verdict:
    """Judge the node's CPU usage, averaged over cpuEvictTimeWindowSeconds.

    The need is counted from the usage itself down to the lower mark; with `by_percent` as in Koordinator, from its
    floored percent.

    Fires if: ⌊used · 100 / capacity⌋ ≥ cpuEvictThresholdPercent.
    Skips:   as every feature of CPU, and no_window: less than a third of the window has samples.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go.
    """
    if (unjudged := skipped_cpu(view, FEATURE, cpu_evict_problem)) is not None:
        return unjudged
    cpu, strategy = view.cpu, view.strategy
    window = cpu.measured.window if cpu is not None else None
    threshold = strategy.cpuEvictThresholdPercent if strategy else None
    lower = cpu_evict_lower_percent(strategy) if strategy else None
    if cpu is None or threshold is None or lower is None:  # `skipped_cpu` told of it
        return skip(FEATURE, "invalid_config", "cpuEvictThresholdPercent is not set")
    if window is None or window.node_used_millicpu is None or not has_window(window):
        return skip(FEATURE, "no_window", "the node's CPU usage is known for less than a third of the window")
    used, capacity = window.node_used_millicpu, cpu.capacity_millicpu
    percent = used * 100 // capacity
    evidence = CpuEvidence(
        window_ns=window.window_ns,
        used_millicpu=used,
        of_millicpu=capacity,
        threshold_percent=threshold,
        lower_percent=lower,
    )
    if percent < threshold:
        return Verdict(FEATURE, False, f"node uses {percent} % of its CPU < {threshold} %", cpu=evidence)
    need = capacity * (percent - lower) // 100 if by_percent else used - max(capacity * lower // 100, 0)
    return Verdict(
        feature=FEATURE,
        fires=True,
        reason=(
            f"node uses {percent} % of its CPU ≥ {threshold} %, need {format_millicpu(need)} to reach {max(lower, 0)} %"
        ),
        cpu=evidence,
        cpu_needs=(CpuNeed(USED_CPU, need, used, capacity),),
    )
