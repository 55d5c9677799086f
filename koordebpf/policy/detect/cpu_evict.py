"""CPUEvict: does the node use more CPU than the line above which pods are evicted by priority."""

from __future__ import annotations

from koordebpf.policy.detect.verdict import Need, UseEvidence, UseMoment, Verdict, has_window, skip, skipped_cpu
from koordebpf.slo.strategies.resource_threshold import cpu_evict_lower_percent, cpu_evict_problem, first_byte_at
from koordebpf.state.amount import CPU, USED_CPU
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S, format_millicpu

FEATURE = "CPUEvict"


def cpu_evict(view: NodeView, *, by_percent: bool = False) -> Verdict:
    """Judge the node's CPU usage, averaged over cpuEvictTimeWindowSeconds and again now.

    A window may be longer than the pause after an eviction, and remembers for as long what went with it. The need is
    counted from the usage itself down to the lower mark; with `by_percent` as in Koordinator, from its floored percent.

    Fires if: ⌊used · 100 / capacity⌋ ≥ cpuEvictThresholdPercent, over the window and now. The need is the smaller of
             both.
    Skips:   as every feature of CPU, and no_window: less than a third of the window has samples.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go.
    """
    if (unjudged := skipped_cpu(view, FEATURE, cpu_evict_problem)) is not None:
        return unjudged
    cpu, strategy = view.cpu, view.strategy
    window = cpu.measured.window if cpu is not None else None
    threshold = strategy.cpuEvictThresholdPercent if strategy else None
    lower = cpu_evict_lower_percent(strategy) if strategy else None
    if cpu is None or threshold is None or lower is None:  # `skipped_cpu` has reported it
        return skip(FEATURE, "invalid_config", "cpuEvictThresholdPercent is not set")
    usage = cpu.measured.usage
    if window is None or usage is None or window.node_used_millicpu is None or not has_window(window):
        return skip(FEATURE, "no_window", "the node's CPU usage is known for less than a third of the window")
    used, now, capacity = window.node_used_millicpu, usage.node_used_millicpu, cpu.capacity_millicpu
    percent, percent_now = used * 100 // capacity, now * 100 // capacity
    evidence = UseEvidence(
        CPU,
        of=capacity,
        used=used,
        used_percent=percent,
        threshold_percent=threshold,
        lower_percent=lower,
        threshold=first_byte_at(threshold, capacity),
        lower=max(capacity * lower // 100, 0),
        window_ns=window.window_ns,
        now=UseMoment(now, capacity),
    )
    if percent < threshold:
        return Verdict(FEATURE, False, f"node uses {percent} % of its CPU < {threshold} %", evidence=evidence)
    if percent_now < threshold:
        over = f"node uses {percent_now} % of its CPU now < {threshold} %"
        return Verdict(FEATURE, False, f"{over}; {percent} % in {window.window_ns // NS_PER_S} s", evidence=evidence)
    if by_percent:
        need = capacity * (min(percent, percent_now) - lower) // 100
    else:
        need = min(used, now) - max(capacity * lower // 100, 0)
    if need <= 0:  # a threshold of 0 on an idle node
        return Verdict(FEATURE, False, "node uses no CPU", evidence=evidence)
    return Verdict(
        feature=FEATURE,
        fires=True,
        reason=(
            f"node uses {percent} % of its CPU ≥ {threshold} %, need {format_millicpu(need)} to reach {max(lower, 0)} %"
        ),
        evidence=evidence,
        needs=(Need(USED_CPU, need, used, capacity),),
    )
