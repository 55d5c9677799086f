"""Monitoring of the cache and the memory bandwidth of QoS classes: `ResctrlCollector` of koordlet. It reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.clock import Due
from koordebpf.policy.strategy import Decision
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import Runner
from koordebpf.state.view import NodeView
from koordebpf.strategies.resctrl.run import RESCTRL, read_monitoring
from koordebpf.strategies.resctrl.values import MonitoredDomain
from koordebpf.units import NS_PER_S


def resctrl_families(monitored: Sequence[MonitoredDomain]) -> Iterator[Metric]:
    """Yield what each L3 says of each class; a value that the kernel has not is left out."""
    cache = GaugeMetricFamily(
        "koordebpf_resctrl_llc_occupancy_bytes",
        "L3 cache that the tasks of a QoS class hold.",
        labels=["cache_id", "qos"],
    )
    bandwidth = CounterMetricFamily(
        "koordebpf_resctrl_memory_bytes",
        "Bytes between an L3 cache and memory, of a QoS class.",
        labels=["cache_id", "qos", "type"],
    )
    for each in monitored:
        labels = [str(each.domain), each.group]
        if each.llc_occupancy_bytes is not None:
            cache.add_metric(labels, each.llc_occupancy_bytes)
        for kind, value in (("total", each.mbm_total_bytes), ("local", each.mbm_local_bytes)):
            if value is not None:
                bandwidth.add_metric([*labels, kind], value)
    yield from (family for family in (cache, bandwidth) if family.samples)


def koordlet_resctrl_families(node: str, monitored: Sequence[MonitoredDomain]) -> Iterator[Metric]:
    """Yield the same under koordlet's names; its bandwidth is the kernel's counter, too.

    Source:  koordinator pkg/koordlet/metrics/resctrl.go.
    """
    labels = ["node", "cache_id", "qos"]
    cache = GaugeMetricFamily("koordlet_resctrl_llc_occupancy", "L3 cache that a QoS class holds.", labels=labels)
    text = "Bytes between an L3 cache and memory, of a QoS class."
    bandwidth = GaugeMetricFamily("koordlet_resctrl_memory_bandwidth", text, labels=[*labels, "mb_type"])
    for each in monitored:
        of = [node, str(each.domain), each.group]
        if each.llc_occupancy_bytes is not None:
            cache.add_metric(of, each.llc_occupancy_bytes)
        for kind, value in (("mbm_total_bytes", each.mbm_total_bytes), ("mbm_local_bytes", each.mbm_local_bytes)):
            if value is not None:
                bandwidth.add_metric([*of, kind], value)
    yield from (family for family in (cache, bandwidth) if family.samples)


class ResctrlMonitor(Runner):
    """Reads, when that is due. No strategy decides from it.

    Args:
        root: where resctrl is mounted.
        koordlet_node: the Node of koordlet's metrics; None: they are not shown.
    """

    period_ns = 10 * NS_PER_S  # Why: koordlet's resctrl-collector-interval

    def __init__(self, root: Path, koordlet_node: str | None) -> None:
        super().__init__("monitoring of resctrl")
        self._root = root
        self._koordlet_node = koordlet_node
        self.monitored: tuple[MonitoredDomain, ...] = ()  # as read last
        self._due = Due(self.period_ns)

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Read, when that is due."""
        if self._due.is_nearly_due(view.now_ns):
            self._due.done(view.now_ns)
            self.monitored = read_monitoring(self._root)

    def families(self) -> Iterator[Metric]:
        """Yield what was read last."""
        yield from resctrl_families(self.monitored)
        if self._koordlet_node is not None:
            yield from koordlet_resctrl_families(self._koordlet_node, self.monitored)


def open_resctrl_monitor(node: NodeContext) -> ResctrlMonitor:
    """Return it."""
    return ResctrlMonitor(RESCTRL, node.metrics.koordlet_node)
