"""Measures what Katalyst's plugins inside the agent decide from, beside the node's memory and pods."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.memory.pressure import PressureFiles
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import KernelFileError, KernelProblem
from koordebpf.kernel.cgroup.tables import numa_held
from koordebpf.kernel.host.machine import has_link
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.table import number
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.kernel.proc.cpu_topology import SYSFS
from koordebpf.kernel.proc.meminfo import Meminfo, numa_total_bytes
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.kernel.proc.vmstat import Vmstat, Zoneinfo
from koordebpf.state.cnr import Cnr
from koordebpf.state.measured import NodeMeasure
from koordebpf.strategies.katalyst.rootfs import RootfsCollector
from koordebpf.strategies.katalyst.values import KatalystMeasured, NumaMemory, SystemMemory

log = logging.getLogger(__name__)
_SCALE_FACTOR = Path("/proc/sys/vm/watermark_scale_factor")
_MOST = 64  # Why: of a CustomNodeResource that names more, the first ones, which is 4 ms


class KatalystMemory(Closing):
    """Reads free memory, watermarks and pressure. A node that is a cgroup has what its limit leaves, and no NUMA nodes.

    Args:
        watch: of the node, for the kubelet's burstable level.
        pod_files: memory.pressure of pods, which the collector of memory keeps open.
        needs_pods: whether it matters now what pods hold on these NUMA nodes, which is a file a pod.
        needs_pressure: whether it matters, at this pressure of the level in percent, what each pod's is: a file a pod.
        counts_steals: pages that kswapd reclaims are counted.
    """

    def __init__(
        self,
        watch: NodeWatch,
        pod_files: PressureFiles,
        needs_pods: Callable[[Sequence[NumaMemory]], bool],
        needs_pressure: Callable[[float], bool],
        *,
        counts_steals: bool = False,
    ) -> None:
        self._watch = watch
        self._pod_files = pod_files
        self._needs_pods = needs_pods
        self._needs_pressure = needs_pressure
        is_machine = watch.scope.kind == "machine"
        self._meminfo = Meminfo() if is_machine else None
        self._zones = Zoneinfo() if is_machine else None
        self._vmstat = Vmstat() if counts_steals else None
        self._pressure: tuple[Path, PressureFile] | None = None
        self._numa_nodes = 0  # as read last
        self._problems: set[str] = set()

    def measure(self, node: NodeMeasure, *, is_round: bool) -> KatalystMeasured:
        """Return what is known now. `node` is as it was measured with the pods.

        `is_round` asks for what changes slowly, too: a single NUMA node, and pages that kswapd reclaims.

        Cost:   30 µs; with NUMA nodes 0.3 ms, and 65 µs a pod while they need pods; 3 µs a pod under pressure.
        """
        try:
            scale_factor = number(_SCALE_FACTOR, read_kernel_file(_SCALE_FACTOR).data)
            found = self._free_and_available(node)
        except (OSError, KernelProblem) as error:
            self._report(str(error) if isinstance(error, KernelProblem) else f"{_SCALE_FACTOR}: {error}")
            return KatalystMeasured()
        if found is None:
            return KatalystMeasured()
        stolen = self._vmstat.read().pgsteal_kswapd if self._vmstat and is_round else None
        pressure = self._burstable_pressure()
        pods = self._pods_pressure() if pressure is not None and self._needs_pressure(pressure) else None
        system = SystemMemory(node.total_bytes, *found, scale_factor, pressure, stolen, pods)
        return KatalystMeasured(system, self._numa() if is_round or self._numa_nodes > 1 else None)

    def close(self) -> None:
        """Close every fd."""
        for each in (self._meminfo, self._zones, self._vmstat, self._pressure and self._pressure[1]):
            if each is not None:
                each.close()

    def _free_and_available(self, node: NodeMeasure) -> tuple[int, int] | None:
        if self._meminfo is not None:
            values = self._meminfo.read()
            return values.mem_free_bytes, values.mem_available_bytes
        if node.memory is None or node.used_bytes is None:
            return None
        free = node.total_bytes - node.memory.usage_bytes
        return max(free, 0), max(node.total_bytes - node.used_bytes, 0)

    def _numa(self) -> tuple[NumaMemory, ...] | None:
        if self._zones is None:
            return None
        try:
            zones = self._zones.read()
        except KernelFileError as error:
            self._report(str(error))
            return None
        found = tuple(
            NumaMemory(
                zone.node,
                _total_bytes(zone.node),
                zone.free_pages,
                zone.min_pages,
                zone.low_pages,
                zone.inactive_file_pages,
                zone.active_file_pages,
            )
            for zone in zones
        )
        self._numa_nodes = len(found)
        if not self._needs_pods(found):
            return found
        pods = {uid: self._held(cgroup_id) for uid, cgroup_id in self._watch.index.pod_cgroups().items()}
        return tuple(
            replace(each, pods={uid: held[each.node] for uid, held in pods.items() if each.node in held})
            for each in found
        )

    def _held(self, cgroup_id: int) -> dict[int, int]:
        hierarchy, path = self._watch.scope.hierarchy, self._watch.index.path(cgroup_id)
        if path is None:
            return {}
        try:
            return numa_held(hierarchy.mount_point / path, hierarchy.version)
        except (KernelProblem, OSError):
            return {}

    # The kubelet's burstable level, wherever its driver has it; on v1 there is no such file.
    def _burstable_pressure(self) -> float | None:
        path = self._burstable()
        if path is None:
            return None
        try:
            if self._pressure is None or self._pressure[0] != path:
                if self._pressure is not None:
                    self._pressure[1].close()
                    self._pressure = None
                self._pressure = path, PressureFile(path)
            return self._pressure[1].read().some.avg10
        except KernelProblem as error:
            self._report(str(error))
            return None

    def _pods_pressure(self) -> dict[str, float]:
        cgroups = self._watch.index.pod_cgroups()
        return {uid: read.some.avg10 for uid, each in cgroups.items() if (read := self._pod_files.of(each)) is not None}

    def _burstable(self) -> Path | None:
        scope = self._watch.scope
        if scope.hierarchy.version == 1:
            return None
        for kubepods in self._watch.index.kubelet.counting:
            directory = scope.path / kubepods.path
            name = directory.name
            level = f"{name.removesuffix('.slice')}-burstable.slice" if name.endswith(".slice") else "burstable"
            if (directory / level / "memory.pressure").exists():
                return directory / level / "memory.pressure"
        return None

    def _report(self, sentence: str) -> None:
        if sentence not in self._problems:
            self._problems.add(sentence)
            log.warning("Katalyst's plugins: %s", sentence)


def _total_bytes(node: int) -> int:
    try:
        return numa_total_bytes(node, SYSFS / f"node/node{node}/meminfo")
    except (OSError, KernelFileError):
        return 0


def links_of(cnr: Cnr) -> dict[str, bool]:
    """Return whether each NIC has a link, by the name of its zone; one that cannot be seen from here is left out.

    Cost:    60 µs a NIC.
    """
    found = {zone.name: has_link(zone.name) for zone in cnr.nics[:_MOST]}
    return {name: is_up for name, is_up in found.items() if is_up is not None}


class KatalystCollector:
    """Puts together what is read of memory, the disk and the cluster.

    Args:
        memory: of the node.
        known: of the cluster, for the CNR.
        rootfs: of the disk and pods' layers; None: no plugin judges them.
        with_links: the links of the CNR's NICs are looked at.
    """

    def __init__(
        self, memory: KatalystMemory, known: ClusterView, rootfs: RootfsCollector | None, *, with_links: bool
    ) -> None:
        self._memory = memory
        self._known = known
        self._rootfs = rootfs
        self._with_links = with_links

    def measure(self, node: NodeMeasure, *, is_round: bool) -> KatalystMeasured:
        """Return what is known now; `node` and `is_round` as in `KatalystMemory.measure`."""
        cnr = self._known.cnr
        links = links_of(cnr) if cnr is not None and self._with_links else {}
        image_fs, rootfs = self._rootfs.measure() if self._rootfs is not None else (None, None)
        memory = self._memory.measure(node, is_round=is_round)
        return replace(memory, cnr=cnr, links=links, image_fs=image_fs, rootfs=rootfs)
