"""Metrics of QoS strategies: what they count."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.strategies.proactive_reclaim.decide import PodTrim, ReclaimDecision, ReclaimState
from koordebpf.strategies.proactive_reclaim.run import ReclaimMetrics


def scraped(*families: Any) -> str:
    """Return what /metrics shows with them."""
    metrics, registry = AgentMetrics(), CollectorRegistry()
    metrics.node.strategies += [each.families for each in families]
    registry.register(metrics)
    return generate_latest(registry).decode()


def test_proactive_reclaim_counts_what_was_taken_and_whom_it_hurt() -> None:
    metrics = ReclaimMetrics()
    state = ReclaimState(pods={"a": PodTrim(1, 0, 0)})
    metrics.record(ReclaimDecision(state=state, reason="", hurt=("a",), held_by="ls"))
    metrics.record(ReclaimDecision(state=state, reason="", whys={"a": "rests", "b": "rests"}))
    metrics.count("written", 4096)
    metrics.count("written", 4096)
    text = scraped(metrics)
    assert 'koordebpf_proactive_reclaim_bytes_total{result="written"} 8192.0' in text
    assert "koordebpf_proactive_reclaim_hurt_pods_total 1.0" in text
    assert "koordebpf_proactive_reclaim_held_rounds_total 1.0" in text
    assert "koordebpf_proactive_reclaim_pods 1.0" in text
    assert 'koordebpf_proactive_reclaim_pods_by_reason{reason="rests"} 2.0' in text
    assert 'koordebpf_proactive_reclaim_pods_by_reason{reason="step"} 0.0' in text
