"""The job NodeTopologyReport: what it looks at in the loop's thread, and what its own thread asks."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.collect.cluster_view import Known
    from koordebpf.collect.collector import Collector
    from koordebpf.collect.cpu.files import CpuManagerReader
    from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
    from koordebpf.jobs.node_topology.node_info import NodeInfoReader
    from koordebpf.jobs.node_topology.publish import TopologyReporter
    from koordebpf.kube.cache.kubelet_config import KubeletConfig
    from koordebpf.kube.http.transport import Transport
    from koordebpf.runner.context import NodeContext
    from koordebpf.state.cpu.measured import CpuManager
    from koordebpf.state.node_info import NodeInfo
    from koordebpf.state.series.node import NodeSeries

log = logging.getLogger(__name__)

GATE = "NodeTopologyReport"
_CONFIG_AGAIN_S = 300.0  # Why: kubelet reads its configuration when it starts
_CONFIG_RETRY_S = 60.0
_TIMEOUT_S = 5.0


class TopologyJob:
    """Notes pods, Node and the object whenever one of them changed; everything else is the reporter's thread's."""

    name = "the NodeResourceTopology"
    period_ns = 3 * NS_PER_S  # Why: koordlet's interval

    def __init__(
        self, known: Known, reporter: TopologyReporter, manager: CpuManagerReader, kubelet: KubeletCpus
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
        seen, bound = (known.node, known.facts, known.topology), self._manager.read()
        is_same = len(self._seen) == len(seen) and all(a is b for a, b in zip(seen, self._seen, strict=True))
        if is_same and bound == self._bound:
            return
        from koordebpf.jobs.node_topology.publish import Noted

        self._seen, self._bound = seen, bound
        self._kubelet.note(known.facts, ())
        self._reporter.note(Noted(known.node, known.facts, known.topology, bound))

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
        from koordebpf.errors import KubeError
        from koordebpf.kube.clients.kubelet_config import kubelet_config

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


def open_topology_report(node: NodeContext) -> Collector | None:
    """Return the job; None: its feature gate is off."""
    config = node.config
    if not config.feature_gates.get(GATE, False):
        return None
    from koordebpf.clock import SystemClock
    from koordebpf.collect.cpu.files import CpuManagerReader
    from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
    from koordebpf.jobs.node_topology.node_info import NodeInfoReader
    from koordebpf.jobs.node_topology.publish import TopologyReporter
    from koordebpf.jobs.node_topology.shown import TopologyShown
    from koordebpf.kube.colocation.node_topologies import NodeTopologies
    from koordebpf.kube.sources.cpu_manager import STATE
    from koordebpf.runner.own_kubelet import open_own_kubelet

    kubelet = KubeletCpus()
    url = config.kubelet_url
    sources = NodeSources(NodeInfoReader(), open_own_kubelet(config, url) if url else None)
    topologies = None
    if node.acts and config.node_name and config.source != "file":
        from koordebpf.kube.http.transport import open_cluster

        topologies = NodeTopologies(open_cluster(config.kubeconfig, config.kube_context), config.node_name)
    manager = CpuManagerReader(STATE, kubelet.read)
    known, reporter = node.measuring.known, TopologyReporter(sources, topologies)
    shown = TopologyShown(reporter, known, SystemClock(), is_sent=topologies is not None)
    shown.show(node.measuring.beside, config.node_name if config.koordinator_metrics else None)
    return TopologyJob(known, reporter, manager, kubelet)
