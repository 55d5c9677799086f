"""Metrics of hooks around evictions, and of warnings before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from koordebpf.policy.foresight import Kind
from koordebpf.report.prom.decision import Histogram


def hook_families(counts: Mapping[tuple[str, str], int], spent_s: Mapping[str, float]) -> Iterator[Metric]:
    """Yield calls by hook and outcome, and how long they took: at most eight hooks can be set."""
    text = "Calls of hooks before and after evictions, by how they ended."
    family = CounterMetricFamily("koordebpf_eviction_hook_calls", text, labels=["hook", "outcome"])
    for labels, number in counts.items():
        family.add_metric(labels, number)
    yield family
    text = "How long calls of hooks took, all together."
    family = CounterMetricFamily("koordebpf_eviction_hook_seconds", text, labels=["hook"])
    for hook, seconds in spent_s.items():
        family.add_metric([hook], seconds)
    yield family


def warning_families(counts: Mapping[Kind, int], lead: Histogram) -> Iterator[Metric]:
    """Yield how often evictions were warned of, what became of that, and how long before."""
    text = "Warnings of evictions by the forecast, what became of them, and crossings without one."
    family = CounterMetricFamily("koordebpf_eviction_warnings", text, labels=["event"])
    for kind, number in counts.items():
        family.add_metric([kind], number)
    yield family
    text = "From a warning to the crossing of the threshold that it warned of."
    yield lead.family("koordebpf_eviction_warning_lead_seconds", text)
