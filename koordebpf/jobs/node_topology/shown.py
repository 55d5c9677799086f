"""What of the NodeResourceTopology is shown: the page /node-topology, a part of /readyz, and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.errors import ConfigError
from koordebpf.quantity import parse_quantity
from koordebpf.report.health_check import HealthCheck
from koordebpf.report.prom.koordlet import node_gauge
from koordebpf.slo.pods.share_pools import SharePools
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.clock import Clock
    from koordebpf.collect.cluster_view import Known
    from koordebpf.jobs.node_topology.publish import TopologyReporter
    from koordebpf.jobs.node_topology.report import Report
    from koordebpf.report.beside import Beside, Families

_UNITS: Final = {BATCH_CPU: "integer", BATCH_MEMORY: "byte", MID_CPU: "integer", MID_MEMORY: "byte"}
PAGE = "/node-topology"
_MAX_SILENCE_NS = 3600 * NS_PER_S  # nothing changes for days on a quiet node


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


class TopologyPage(msgspec.Struct, frozen=True):
    """The object as it is to be. `problems`: why it is not, or what of it could not be read."""

    is_sent: bool
    writes: int
    problems: tuple[str, ...]
    report: Report | None


class TopologyShown:
    """Looks at a reporter from any thread. `is_sent` False: a dry run."""

    def __init__(self, reporter: TopologyReporter, known: Known, clock: Clock, *, is_sent: bool) -> None:
        self._reporter = reporter
        self._known = known
        self._clock = clock
        self._is_sent = is_sent

    def show(self, beside: Beside, koordlet_node: str | None) -> None:
        """Put it where it is asked for; with the node's name, koordlet's metrics too."""
        beside.pages[PAGE] = lambda _: self.page()
        beside.checks[PAGE] = self.check
        beside.families[PAGE] = lambda: self.families(koordlet_node)

    def page(self) -> TopologyPage:
        """Return what the page shows."""
        reporter = self._reporter
        return TopologyPage(self._is_sent, reporter.writes, self._problems(), reporter.newest)

    def check(self) -> HealthCheck:
        """Return whether the object is as it is to be."""
        problem = "; ".join(self._problems()) or None
        return HealthCheck("NodeResourceTopology", problem, self._clock.now_ns(), _MAX_SILENCE_NS)

    def families(self, koordlet_node: str | None) -> Families:
        """Yield metrics; what koordlet calls them only with the node's name."""
        from koordebpf.jobs.node_topology.shown import allocatable_families, pool_families, topology_families

        reporter, node = self._reporter, self._known.node
        yield from topology_families(reporter.writes)
        if koordlet_node is None:
            return
        if reporter.newest is not None:
            yield from pool_families(koordlet_node, reporter.newest.pools)
        if node is not None:
            yield from allocatable_families(koordlet_node, node.status.allocatable or {})

    def _problems(self) -> tuple[str, ...]:
        reporter = self._reporter
        of_report = reporter.newest.problems if reporter.newest else ()
        return tuple(filter(None, (reporter.problem, reporter.left_to, *of_report)))
