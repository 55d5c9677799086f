"""Metrics of the NodeResourceTopology of this node, and with koordlet's names what it and the Node say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.errors import ConfigError
from koordebpf.quantity import parse_quantity
from koordebpf.report.prom.koordlet import node_gauge
from koordebpf.slo.pods.share_pools import SharePools
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY

_UNITS: Final = {BATCH_CPU: "integer", BATCH_MEMORY: "byte", MID_CPU: "integer", MID_MEMORY: "byte"}


def topology_families(writes: int) -> Iterator[Metric]:
    """Yield what became of the object."""
    yield CounterMetricFamily("koordebpf_node_topology_writes", "NodeResourceTopologies that were written.", writes)


def pool_families(node: str, pools: SharePools) -> Iterator[Metric]:
    """Yield how many CPUs pods share.

    Source:  koordinator pkg/koordlet/metrics/cpu_cpuset.go: same names, same labels.
    """
    text = "CPUs that latency-sensitive pods share."
    yield node_gauge("koordlet_cpuset_share_pool_cpu_cores", text, node, len(pools.ls_cpus))
    text = "CPUs that best-effort pods share."
    yield node_gauge("koordlet_cpuset_be_share_pool_cpu_cores", text, node, len(pools.be_cpus))


def allocatable_families(node: str, allocatable: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what the Node has of batch and mid resources, those that it has alone.

    Source:  koordinator pkg/koordlet/metrics/resource_summary.go: same names, same labels.
    """
    labels = ["node", "resource", "unit"]
    text = "Batch and mid resources that the Node says are allocatable."
    family = GaugeMetricFamily("koordlet_node_resource_allocatable", text, labels=labels)
    for resource, unit in _UNITS.items():
        try:
            if resource in allocatable:
                family.add_metric([node, resource, unit], float(parse_quantity(allocatable[resource])))
        except ConfigError:
            continue
    if family.samples:
        yield family
