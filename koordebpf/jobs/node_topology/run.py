"""Reports what the node is made of as NodeResourceTopology, in koordlet's place (feature gate NodeTopologyReport).

The loop's thread notes what changed; what asks the API server and kubelet is the reporter's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.clock import Clock, SystemClock
from koordebpf.collect.cpu.collector import CpuManagerReader
from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
from koordebpf.errors import ConfigError, KernelFileError, KubeError, SupportError
from koordebpf.jobs.node_topology.publish import Noted, TopologyReporter
from koordebpf.jobs.node_topology.report import NodeInfo, Report
from koordebpf.kernel.host.numa_nodes import numa_nodes, with_all_memory
from koordebpf.kernel.host.processors import PROC, SYSFS, ProcessorFiles, cpu_model
from koordebpf.kernel.proc.cpu_topology import isolated_cpus
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.kube.clients.kubelet import KubeletConfig, kubelet_config
from koordebpf.kube.colocation.node_topologies import NodeTopologies
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.cpu_manager import STATE
from koordebpf.quantity import parse_quantity
from koordebpf.report.job_pages import HealthCheck
from koordebpf.report.prom.koordlet import node_gauge
from koordebpf.runner.context import open_own_kubelet
from koordebpf.slo.pods.cpu_placement import SharePools
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.collect.cluster_view import ClusterView
    from koordebpf.kube.http.transport import Transport
    from koordebpf.report.job_pages import Families, JobPages
    from koordebpf.runner.context import NodeContext
    from koordebpf.state.cpu.measured import CpuManager
    from koordebpf.state.series.store import NodeSeries

log = logging.getLogger(__name__)
_UNITS: Final = {BATCH_CPU: "integer", BATCH_MEMORY: "byte", MID_CPU: "integer", MID_MEMORY: "byte"}
PAGE = "/node-topology"
_MAX_SILENCE_NS = 3600 * NS_PER_S  # nothing changes for days on a quiet node
_CONFIG_AGAIN_S = 300.0  # Why: kubelet reads its configuration when it starts
_CONFIG_RETRY_S = 60.0
_TIMEOUT_S = 5.0


# What is read of the node. Where something cannot be read, its last good value stays effective.


class NodeInfoReader:
    """The node's CPUs, their model and its NUMA nodes."""

    def __init__(self, sysfs: Path = SYSFS, proc: Path = PROC) -> None:
        """Remember where they are."""
        self._sysfs = sysfs
        self._proc = proc
        self._processors = ProcessorFiles(sysfs)
        self._last: NodeInfo | None = None
        self.problem = ""  # why the last look failed

    def read(self) -> NodeInfo | None:
        """Return what the node is made of; None: it was never readable.

        Cost:    0.5 ms with 2 CPUs, where nothing changed.
        """
        try:
            found = NodeInfo(
                processors=self._processors.read(),
                numa=with_all_memory(numa_nodes(self._sysfs), self._memory_bytes()),
                model=cpu_model(self._sysfs, self._proc),
                isolated=tuple(sorted(frozenset[int]().union(*isolated_cpus(self._sysfs / "devices/system").values()))),
            )
        except (KernelFileError, OSError) as error:
            if str(error) != self.problem:
                kept = "the last good one stays in force" if self._last else "nothing is known of it"
                log.warning("the node's CPUs and NUMA nodes: %s; %s", error, kept)
            self.problem = str(error)
            return self._last
        self.problem = ""
        self._last = found
        return found

    def _memory_bytes(self) -> int | None:
        try:
            meminfo = Meminfo(self._proc / "meminfo")
        except SupportError:
            return None
        try:
            return meminfo.read().mem_total_bytes
        finally:
            meminfo.close()


# What is shown: the page /node-topology, a part of /readyz, and metrics.


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

    def __init__(self, reporter: TopologyReporter, known: ClusterView, clock: Clock, *, is_sent: bool) -> None:
        self._reporter = reporter
        self._known = known
        self._clock = clock
        self._is_sent = is_sent

    def show(self, beside: JobPages, koordlet_node: str | None) -> None:
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


# The job.


class TopologyJob:
    """Notes pods, Node and the object whenever one of them changed; everything else is the reporter's thread's."""

    name = "the NodeResourceTopology"
    period_ns = 3 * NS_PER_S  # Why: koordlet's interval

    def __init__(
        self, known: ClusterView, reporter: TopologyReporter, manager: CpuManagerReader, kubelet: KubeletCpus
    ) -> None:
        self._known = known
        self._reporter = reporter
        self._manager = manager
        self._kubelet = kubelet
        self._seen: tuple[object, ...] = ()
        self._bound: CpuManager | None = None

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Look for news. Cost: 10 µs where there is none: a stat of kubelet's file."""
        known = self._known
        if not known.is_whole or known.node is None:
            return
        # As another wrote it, also what cannot be read of it: that is to be replaced.
        topology = known.reported.topology if known.reported is not None else None
        seen, bound = (known.node, known.facts, topology), self._manager.read()
        is_same = len(self._seen) == len(seen) and all(a is b for a, b in zip(seen, self._seen, strict=True))
        if is_same and bound == self._bound:
            return
        self._seen, self._bound = seen, bound
        self._kubelet.request(known.facts, ())
        self._reporter.set_input(Noted(known.node, known.facts, topology, bound))

    def close(self) -> None:
        """End the threads."""
        self._kubelet.close()
        self._reporter.close()


class NodeSources:
    """What the reporter's thread asks of this node. Owns `kubelet`, through which its configuration is asked."""

    def __init__(self, info: NodeInfoReader, kubelet: Transport | None) -> None:
        self._info = info
        self._kubelet = kubelet
        self._config: KubeletConfig | None = None
        self._config_due_s = 0.0
        self._problem = ""

    def info(self) -> NodeInfo | None:
        """Return what the node is made of."""
        return self._info.read()

    def config(self) -> KubeletConfig | None:
        """Return kubelet's configuration; while it does not answer, what it answered last."""
        now_s = time.monotonic()
        if self._kubelet is None or now_s < self._config_due_s:
            return self._config
        try:
            self._config = kubelet_config(self._kubelet, timeout_s=_TIMEOUT_S)
            self._problem, self._config_due_s = "", now_s + _CONFIG_AGAIN_S
        except KubeError as error:
            self._config_due_s = now_s + (_CONFIG_RETRY_S if error.retry else _CONFIG_AGAIN_S)
            if str(error) != self._problem:
                kept = "what it said last" if self._config is not None else "its file cpu_manager_state alone"
                log.warning("kubelet's configuration is not known: %s; the report rests on %s", error, kept)
            self._problem = str(error)
        return self._config

    def close(self) -> None:
        """Cut the connection to kubelet."""
        if self._kubelet is not None:
            self._kubelet.close()


def open_job(node: NodeContext) -> TopologyJob:
    """Return the job. Without the right to act, or with pods from files, the object is rendered and not sent."""
    config, kubelet = node.config, KubeletCpus()
    url = config.kubelet_url
    sources = NodeSources(NodeInfoReader(), open_own_kubelet(config, url) if url else None)
    topologies = None
    if node.acts and config.node_name and config.source != "file":
        topologies = NodeTopologies(open_cluster(config.kubeconfig, config.kube_context), config.node_name)
    manager = CpuManagerReader(STATE, kubelet.read)
    known, reporter = node.measuring.known, TopologyReporter(sources, topologies)
    shown = TopologyShown(reporter, known, SystemClock(), is_sent=topologies is not None)
    shown.show(node.measuring.beside, config.node_name if config.koordinator_metrics else None)
    return TopologyJob(known, reporter, manager, kubelet)
