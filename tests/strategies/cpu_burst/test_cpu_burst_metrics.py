"""Metrics of CPU burst: what they say of a decision."""

from __future__ import annotations

from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.strategies.cpu_burst.run import CpuBurstMetrics
from tests.support.values.cpu_burst import BurstNode, container, pod


def samples(metrics: CpuBurstMetrics) -> dict[tuple[str, str], float]:
    return {
        (each.name, each.labels.get("state", "")): each.value
        for family in metrics.families()
        for each in family.samples
    }


def test_before_the_first_decision_only_wakes_are_counted():
    assert samples(CpuBurstMetrics()) == {("koordebpf_cpu_burst_wakes_total", ""): 0}


def test_the_last_decision():
    metrics = CpuBurstMetrics()
    metrics.decision = BurstNode().round(pod(container()))
    metrics.wakes += 3
    assert samples(metrics) == {
        ("koordebpf_cpu_burst_wakes_total", ""): 3,
        ("koordebpf_cpu_burst_containers", "raised"): 1,
        ("koordebpf_cpu_burst_containers", "at_ceiling"): 0,
        ("koordebpf_cpu_burst_containers", "left"): 0,
        ("koordebpf_cpu_burst_node", "idle"): 1,
        ("koordebpf_cpu_burst_node", "cooling"): 0,
        ("koordebpf_cpu_burst_node", "overload"): 0,
        ("koordebpf_cpu_burst_node", "unknown"): 0,
    }


def test_an_agents_page_has_them_once_the_gate_is_on():
    metrics, burst = AgentMetrics(), CpuBurstMetrics()
    burst.decision = BurstNode().round(pod(container()))
    assert not any(each.name.startswith("koordebpf_cpu_burst") for each in metrics.collect())
    metrics.node.strategies.append(burst.families)
    shown = [each for each in metrics.collect() if each.name.startswith("koordebpf_cpu_burst")]
    assert len(shown) == 3
