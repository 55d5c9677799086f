"""Measures a node's CPUs for the rounds of an agent, and reads who uses them between two rounds."""

from __future__ import annotations

import logging

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.cpu.collector import BurstLook, CpuCollector
from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import CgroupGone, KoordebpfError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.slo.strategies.resource_threshold import cpu_window_s
from koordebpf.state.cpu.measured import CpuMeasured
from koordebpf.state.cpu.view import be_request_millicpu
from koordebpf.state.series.store import NodeSeries
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)


class CpuSampler:
    """What cannot be measured is logged, and measured again the next time.

    Args:
        watch: of the node.
        series: gets what is measured.
        burst_window_ns: over which bursts of others are measured; None: they are not.
    Raises:  SupportError: no sysfs or procfs.
    """

    def __init__(self, watch: NodeWatch, series: NodeSeries, burst_window_ns: int | None = None) -> None:
        self._index = watch.index
        self._series = series
        self._seen: tuple[int | None, frozenset[int]] = (None, frozenset())  # version; cgroups of Guaranteed pods
        self._kubelet = KubeletCpus()
        self._collector = CpuCollector(
            find_controllers(),
            node_path=watch.scope.node_path,
            burst_window_ns=burst_window_ns,
            kubelet=self._kubelet.read,
        )
        self._is_absent = False

    def sample_burst(self, now_ns: int) -> BurstLook | None:
        """Return who uses the CPUs now; None where none is measured."""
        try:
            return None if self._is_absent else self._collector.sample_burst(now_ns)
        except KoordebpfError as error:
            log.warning("the CPUs were not looked at: %s", error)
            return None

    def measure(
        self, now_ns: int, known: ClusterView, view: NodeView | None, *, each_pod: bool = True
    ) -> CpuMeasured | None:
        """Return the node's CPUs; None where the node has no CPU cgroup, as one of memory alone, or not yet.

        Args:
            now_ns: CLOCK_MONOTONIC.
            known: of the cluster.
            view: the last one, for what best-effort pods ask for.
            each_pod: what each pod uses is asked for.
        """
        if self._is_absent:
            return None
        if self._index.version != self._seen[0]:
            owners = [owner for each in self._index if (owner := self._index.owner(each)) is not None]
            self._collector.watch(owners)
            guaranteed = frozenset(owner.cgroup_id for owner in owners if owner.kube_qos == "Guaranteed")
            self._seen = (self._index.version, guaranteed)
        self._kubelet.request(known.facts, self._seen[1])
        if self._kubelet.is_awaited:
            return None  # a first round that takes policy static for none would stand in kubelet's way
        try:
            return self._collector.collect(
                now_ns,
                self._series,
                be_request_millicpu=None if view is None else be_request_millicpu(view.pods),
                evict_window_ns=cpu_window_s(known.strategy) * NS_PER_S,
                each_pod=each_pod,
            )
        except CgroupGone as gone:
            self._is_absent = True
            log.info("no CPU is measured or held: the node has no directory %s", gone.path)
        except KoordebpfError as error:
            log.warning("the CPUs were not measured: %s", error)
        return None

    def close(self) -> None:
        """Close every fd, and end the thread that asks the kubelet's state."""
        self._collector.close()
        self._kubelet.close()
