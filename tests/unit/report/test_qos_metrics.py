"""Metrics of QoS strategies: their names are those of their pages, and what they count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from koordebpf.policy.proactive_reclaim.strategy import ReclaimDecision, ReclaimState
from koordebpf.policy.proactive_reclaim.trim import PodTrim
from koordebpf.report.prom.colocation.node_metric import NodeMetricNow, sending_families
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.node import MetricFamilies
from koordebpf.report.prom.qos.dead_man import DeadManMetrics
from koordebpf.report.prom.qos.page_cache import PageCacheMetrics
from koordebpf.report.prom.qos.proactive_reclaim import ReclaimMetrics

DOCS = Path(__file__).parents[3] / "docs/qos"
OF_OPERATORS = (Path(__file__).parents[3] / "deploy/metrics.md").read_text()
PAGES = {"page-cache.md": PageCacheMetrics, "proactive-reclaim.md": ReclaimMetrics}


def scraped(*families: MetricFamilies) -> str:
    """Return what /metrics shows with them."""
    metrics, registry = AgentMetrics(), CollectorRegistry()
    metrics.node.qos.extend(families)
    registry.register(metrics)
    return generate_latest(registry).decode()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_each_of_its_metrics_and_no_other(page: str) -> None:
    without = set(
        re.findall(r"^# TYPE (\w+) ", scraped(type("None_", (), {"families": lambda self: iter(())})()), re.M)
    )
    named = set(re.findall(r"^# TYPE (\w+) ", scraped(PAGES[page]()), re.M)) - without
    assert named == set(re.findall(r"^\| `(koordebpf_\w+)` \|", (DOCS / page).read_text(), re.M))


@pytest.mark.parametrize(
    "families",
    [
        PageCacheMetrics().families(),
        ReclaimMetrics().families(),
        DeadManMetrics().families(),
        sending_families(NodeMetricNow(age_s=1)),
    ],
    ids=["page cache", "proactive reclaim", "dead man", "node metric"],
)
def test_the_table_for_operators_has_them(families: Iterator[Metric]) -> None:
    for each in families:
        name = each.name + ("_total" if each.type == "counter" else "")
        labels = " ".join(f"`{label}`" for label in each._labelnames or ())
        assert f"| `{name}` | {each.type} | {labels} | {each.documentation} |\n" in OF_OPERATORS


def test_proactive_reclaim_counts_what_was_taken_and_whom_it_hurt() -> None:
    metrics = ReclaimMetrics()
    state = ReclaimState(pods={"a": PodTrim(1, 0, 0)})
    metrics.take(ReclaimDecision(state=state, reason="", hurt=("a",), held_by="ls"))
    metrics.take(ReclaimDecision(state=state, reason="", whys={"a": "rests", "b": "rests"}))
    metrics.count("written", 4096)
    metrics.count("written", 4096)
    text = scraped(metrics)
    assert 'koordebpf_proactive_reclaim_bytes_total{result="written"} 8192.0' in text
    assert "koordebpf_proactive_reclaim_hurt_pods_total 1.0" in text
    assert "koordebpf_proactive_reclaim_held_rounds_total 1.0" in text
    assert "koordebpf_proactive_reclaim_pods 1.0" in text
    assert 'koordebpf_proactive_reclaim_pods_by_reason{reason="rests"} 2.0' in text
    assert 'koordebpf_proactive_reclaim_pods_by_reason{reason="step"} 0.0' in text
