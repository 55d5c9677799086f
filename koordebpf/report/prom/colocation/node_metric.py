"""Metrics of the report of the node: how it is sent, and with koordlet's names what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.policy.node_metric.sending import Held
from koordebpf.quantity import quantity_bytes, quantity_millicpu

_UNITS = (("cpu", "core"), ("memory", "byte"))


class NodeMetricNow(msgspec.Struct, frozen=True):
    """What is true of the report now. `age_s` None: the server has none of this agent's. `held`: why none is sent."""

    written: int = 0
    tries: int = 0
    bytes: int = 0
    conflicts: int = 0
    failures: int = 0
    age_s: float | None = None
    held: Held | None = None


def sending_families(now: NodeMetricNow) -> Iterator[Metric]:
    """Yield what became of the reports of this agent."""
    name = "koordebpf_node_metric"
    yield CounterMetricFamily(f"{name}_written", "Reports of the node that the API server has taken.", now.written)
    yield CounterMetricFamily(f"{name}_bytes", "Bytes of requests with reports, whatever became of them.", now.bytes)
    yield CounterMetricFamily(f"{name}_conflicts", "Reports that another writer was ahead of.", now.conflicts)
    yield CounterMetricFamily(f"{name}_failures", "Reports that were refused or not answered.", now.failures)
    if now.age_s is not None:
        yield GaugeMetricFamily(f"{name}_age_seconds", "Age of the report that the API server has.", now.age_s)
    held = GaugeMetricFamily(f"{name}_held", "Why no report is being sent; 1 for the reason.", labels=["reason"])
    for reason in get_args(Held):
        held.add_metric([reason], float(reason == now.held))
    yield held


def usage_families(node: str, status: dict[str, Any]) -> Iterator[Metric]:
    """Yield what a status says of the node, as koordlet with its gate NodeMetricPromMetrics.

    Source:  koordinator pkg/koordlet/metrics: same names, same labels.
    """
    info = status["nodeMetric"]
    for part, what in (("node", "The node"), ("system", "What is neither pod nor host application")):
        labels = ["node", "resource", "unit"]
        usage = GaugeMetricFamily(f"koordlet_node_metric_{part}_usage", f"{what}: usage as reported.", labels=labels)
        _add(usage, [node], info[f"{part}Usage"])
        yield usage
        if zones := info.get("numaUsages"):
            name, text = f"koordlet_node_metric_numa_{part}_usage", f"{what}: the same of each NUMA node."
            of_numa = GaugeMetricFamily(name, text, labels=["node", "numa_node_id", "resource", "unit"])
            for zone in zones:
                _add(of_numa, [node, str(zone["numaNodeID"])], zone[f"{part}Usage"])
            yield of_numa


def _add(family: GaugeMetricFamily, labels: list[str], usage: dict[str, Any]) -> None:
    found = usage.get("resources", {})
    for (name, unit), number in zip(_UNITS, (quantity_millicpu, quantity_bytes), strict=True):
        if name in found:
            family.add_metric([*labels, name, unit], number(found[name]) / (1000 if name == "cpu" else 1))
