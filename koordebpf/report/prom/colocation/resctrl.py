"""Metrics of resctrl's monitoring: at most three classes times the L3 caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.state.resctrl.measured import MonitoredDomain


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
