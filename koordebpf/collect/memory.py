"""Reads the node: the one place where a cgroup may be gone in the middle of it.

Everything a call returns was read during the call; nothing is kept from an earlier one but open fds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Self

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import Owner
from koordebpf.collect.memory_stats import MemoryStats
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone, ConfigError, SupportError
from koordebpf.events.layout import MEMCG_LRU_AT, NO_LIMIT_PAGES, NOT_KNOWN, sum_memcgs
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, task_count
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE, PressureFile, PressureLine
from koordebpf.kernel.signals.interface import Backend
from koordebpf.state.series import GrowthTable
from koordebpf.state.stalls.sums import LimitedCgroup, Row, ScanSums, cgroup_used_bytes, packed
from koordebpf.state.view import (
    Measured,
    MemoryParts,
    NodeMeasure,
    PodMeasure,
    PsiLine,
    StallParts,
    StallShares,
    StrayMeasure,
)
from koordebpf.units import PAGE_BYTES

log = logging.getLogger(__name__)

# Keys of the node in the growth table: what it uses, and its usage with page cache.
_NODE, _USAGE = "", "usage"
_NOT_READ = (0, NOT_KNOWN, 0, 0, 0, 0)  # swap, reclaimable slab and the four events of a row: they are not summed up


# The cgroups of pods' own levels, of one version of the index.
class _Levels(msgspec.Struct, frozen=True):
    version: int
    cgroups: Mapping[str, int]  # by the uid of a known pod
    without_pod: tuple[Owner, ...]
    uids: Mapping[int, str]  # of both

    @classmethod
    def of(cls, index: CgroupIndex) -> Self:
        cgroups, without_pod = index.pod_cgroups(), index.cgroups_without_pod()
        uids = {cgroup_id: uid for uid, cgroup_id in cgroups.items()}
        uids.update((owner.cgroup_id, owner.pod_uid) for owner in without_pod if owner.pod_uid)
        return cls(index.version, cgroups, without_pod, uids)


class Collector:
    """Measures the node and its pods, by one scan where the kernel has a cgroup iterator, else by files."""

    def __init__(self, scope: NodeScope, signals: Backend, index: CgroupIndex) -> None:
        self._scope = scope
        self._signals = signals
        self._index = index
        self._growth: GrowthTable[str] = GrowthTable()
        self._meminfo = Meminfo() if scope.kind == "machine" else None
        self._node_files = CgroupMemory(scope.path, scope.hierarchy.version) if scope.kind == "cgroup" else None
        self._files: dict[int, CgroupMemory] = {}
        self._stats = MemoryStats(scope, index)
        self._pressure = _open_pressure(scope)
        self._pod_pressure: dict[int, PressureFile] = {}
        self._levels: _Levels | None = None
        self._sums: ScanSums | None = None  # of the last full measurement
        self._scanned: NodeMeasure | None = None  # what `node` made of the last scan, if it was its
        self._scanned_since_ns = 0
        self._missed = 0
        # Whether each cgroup has a memory.pressure file: on v1 and with psi=0 there is none.
        self.has_pressure_files = scope.hierarchy.version == 2 and _has_psi()

    def node(self, threshold_bytes: int | None = None) -> NodeMeasure:
        """Return how full the node is now, as exactly as it takes to tell whether it is above the threshold.

        A cgroup whose usage with page cache is below it cannot be: then that usage stands in `used_bytes`, for one
        read. Only above it is the page cache looked for, by a scan: the node's own memory.stat lags behind its
        children's by up to 2 s (measured on 6.18), and the scan waits for every process that joins a cgroup, up to
        20 ms (cgroup_mutex).

        Raises:  CgroupGone: the node's cgroup was removed.
        Cost:    25 µs for the machine; 5 µs for a cgroup, 0.2 ms for one of 330 with much page cache.
        """
        if self._meminfo:
            return self._machine(self._meminfo)
        assert self._node_files is not None  # one of the two, by the scope's kind
        usage = self._node_files.usage_bytes()
        if threshold_bytes is not None and usage < threshold_bytes:
            growth = self._growth.push(_USAGE, time.monotonic_ns(), usage)
            return NodeMeasure("cgroup", self._limit_bytes(self._node_files), usage, growth)
        since_ns = time.monotonic_ns()
        node = self._cgroup(self._node_files, self._scan_node())
        if self._signals.can_scan:
            self._scanned, self._scanned_since_ns = node, since_ns
        return node

    def everything(
        self,
        stalls: Mapping[str, StallParts],
        tmpfs_uids: Collection[str],
        node_stall: StallParts | None,
        sampled: NodeMeasure | None = None,
    ) -> Measured:
        """Return the node and all its pods as they are now.

        Args:
            stalls: of the last seconds, by pod.
            tmpfs_uids: pods whose shmem must be known, for the tmpfs that outlives them: one more file each, which is
                read too for pods that hold much beside page cache and process memory.
            node_stall: of the last seconds.
            sampled: what `node` said a moment ago: the scan it took, if it took one, serves for this too.
        Raises:  CgroupGone: the node's cgroup was removed.
        """
        since_ns = time.monotonic_ns()
        scanned, self._scanned = self._scanned, None
        if sampled is not None and sampled is scanned:
            since_ns = self._scanned_since_ns
            sums = self._sums = self._sums_of(self._signals.scanned())
            node = sampled
        elif self._meminfo:
            sums = self._sums = self._scan()
            node = self._machine(self._meminfo)
        else:
            assert self._node_files is not None
            sums = self._sums = self._scan()
            node = self._cgroup(self._node_files, sums.all(self._scope.root_id))
        pods: list[PodMeasure] = []
        strays: list[StrayMeasure] = []
        now_ns = time.monotonic_ns()
        if self._levels is None or self._levels.version != self._index.version:
            self._levels = _Levels.of(self._index)
        cgroups, without_pod = self._levels.cgroups, self._levels.without_pod
        memories = self._memories(sums, self._levels, tmpfs_uids)
        for uid, cgroup_id in cgroups.items():
            memory = memories.get(cgroup_id)
            growth = self._growth.push(uid, now_ns, memory.held_bytes) if memory else None
            pods.append(PodMeasure(uid, cgroup_id, memory, growth, stalls.get(uid)))
        for owner in without_pod:
            strays.append(StrayMeasure(owner.cgroup_id, owner.path, memories.get(owner.cgroup_id), owner.pod_uid))
        self._growth.keep_only([_NODE, _USAGE, *(pod.uid for pod in pods)])
        for cgroup_id in self._pod_pressure.keys() - {pod.cgroup_id for pod in pods} if self._pod_pressure else ():
            self._pod_pressure.pop(cgroup_id).close()
        some, full = self.pressure()
        node = msgspec.structs.replace(node, stall=node_stall, psi_some=some, psi_full=full)
        return Measured(time.monotonic_ns(), since_ns, node, tuple(pods), tuple(strays))

    def pressure(self) -> tuple[PsiLine | None, PsiLine | None]:
        """Return the node's PSI lines, `some` and `full`; None where this kernel or cgroup version has none."""
        if self._pressure is None:
            return None, None
        read = self._pressure.read()
        return _psi_line(read.some), _psi_line(read.full)

    def pressure_of(self, cgroup_id: int) -> StallShares | None:
        """Return what a cgroup's memory.pressure file says, by a kept fd for a pod's; None: gone, or it has none."""
        try:
            file = self._pod_pressure.get(cgroup_id)
            if file is None:
                path = self._index.path(cgroup_id)
                if path is None:
                    return None
                file = PressureFile(self._scope.hierarchy.mount_point / path / "memory.pressure")
                self._pod_pressure[cgroup_id] = file
            read = file.read()
        except (CgroupGone, SupportError):
            if gone := self._pod_pressure.pop(cgroup_id, None):
                gone.close()
            return None
        some, full = _psi_line(read.some), _psi_line(read.full)
        return StallShares(some, full, derived=False) if some else None

    def task_counts(self, cgroup_ids: Collection[int]) -> dict[int, int]:
        """Return how many tasks each of these cgroups has; those with children and those that are gone are left out.

        Cost:    20 µs each.
        """
        counts: dict[int, int] = {}
        for cgroup_id in cgroup_ids:
            path = self._index.path(cgroup_id)
            if path is not None and (count := task_count(self._scope.hierarchy.mount_point / path)) is not None:
                counts[cgroup_id] = count
        return counts

    def outside(self) -> dict[int, int]:
        """Return what the cgroups outside all pods held at the last full measurement, `ScanSums.outside`.

        Without a scan there is none: their files are not read.
        """
        return self._sums.outside() if self._sums else {}

    def swap_bytes(self, cgroup_id: int | None) -> int:
        """Return what a cgroup had in swap at the last full measurement, `ScanSums.swap_bytes`."""
        return self._sums.swap_bytes(cgroup_id) if self._sums and cgroup_id is not None else 0

    def limited(self, pod_levels: Collection[int]) -> list[LimitedCgroup]:
        """Return the pods and containers with a limit at the last full measurement, `ScanSums.limited`."""
        return self._sums.limited(pod_levels) if self._sums else []

    def _scan_node(self) -> MemoryParts | None:
        if not self._signals.can_scan:
            return self._scan().all(self._scope.root_id)
        with self._rows() as rows:
            node = sum_memcgs(rows)
        if node is None or node[0] != self._scope.root_id:
            return None
        return MemoryParts(node[2] * PAGE_BYTES, *(pages * PAGE_BYTES for pages in node[MEMCG_LRU_AT:]))

    def _limit_bytes(self, files: CgroupMemory) -> int:
        limit = files.limit_bytes()
        if limit is None:
            raise ConfigError("--node-cgroup", str(self._scope.path), "lost its memory limit")
        return limit

    def _scan(self) -> ScanSums:
        if not self._signals.can_scan:
            return ScanSums(packed(self._scan_files()), self._index.subtree_pod, 1)
        return self._sums_of(self._rows())

    def _sums_of(self, rows: memoryview) -> ScanSums:
        before, version = self._sums, self._index.version
        with rows:
            copy = bytes(rows)  # compared in no time; a memoryview is compared byte by byte
        if before is not None and before.is_of(copy, version):
            return before
        return ScanSums(copy, self._index.subtree_pod, PAGE_BYTES, before, version)

    def _rows(self) -> memoryview:
        # A memoryview releases itself at the end of its `with`.
        rows = self._signals.scan()
        if (missed := self._signals.scan_missed()) != self._missed:
            self._missed = missed
            log.warning("the scan's table is full: %d memory cgroups are not measured", missed)
        return rows

    def _scan_files(self) -> Iterator[Row]:
        # memory.stat is hierarchical: only the node and the pods are read, and nothing is summed up.
        version, mount_point = self._scope.hierarchy.version, self._scope.hierarchy.mount_point
        wanted = {cgroup_id: self._index.path(cgroup_id) for cgroup_id in self._index.pod_cgroups().values()}
        wanted |= {owner.cgroup_id: owner.path for owner in self._index.cgroups_without_pod()}
        for cgroup_id in self._files.keys() - wanted.keys():
            self._files.pop(cgroup_id).close()
        pods = [0, 0, 0, 0, 0]
        for cgroup_id, path in wanted.items():
            if path is None:
                continue
            reader = self._files.get(cgroup_id)
            if reader is None:
                reader = self._files[cgroup_id] = CgroupMemory(mount_point / path, version)
            try:
                lru = _row(cgroup_id, reader)
            except (CgroupGone, SupportError):  # SupportError: on v2 the controller is not enabled there
                self._files.pop(cgroup_id).close()
                continue
            pods = [sum(pair) for pair in zip(pods, lru[MEMCG_LRU_AT:], strict=True)]
            yield lru
        if self._node_files:
            node = _row(self._scope.root_id, self._node_files)
            own = (max(whole - part, 0) for whole, part in zip(node[MEMCG_LRU_AT:], pods, strict=True))
            yield (*node[:MEMCG_LRU_AT], *own)

    def _machine(self, meminfo: Meminfo) -> NodeMeasure:
        values = meminfo.read()
        growth = self._growth.push(_NODE, time.monotonic_ns(), values.used_bytes)
        return NodeMeasure("machine", values.mem_total_bytes, values.used_bytes, growth)

    def _cgroup(self, files: CgroupMemory, memory: MemoryParts | None) -> NodeMeasure:
        limit = self._limit_bytes(files)
        if memory is None:
            raise CgroupGone(str(self._scope.path))
        if self._scope.hierarchy.version == 2:
            # v1 does not show it: reclaimable slab counts as used there.
            stat = files.read()
            memory = msgspec.structs.replace(memory, slab_reclaimable_bytes=stat.slab_reclaimable_bytes)
        used = cgroup_used_bytes(memory)
        growth = self._growth.push(_NODE, time.monotonic_ns(), used)
        return NodeMeasure("cgroup", limit, used, growth, memory)

    # By cgroup id, of pods and of cgroups without a known pod.
    def _memories(self, sums: ScanSums, levels: _Levels, tmpfs_uids: Collection[str]) -> Mapping[int, MemoryParts]:
        memories = {
            cgroup_id: memory
            for cgroup_id, uid in levels.uids.items()
            if (memory := sums.pod(uid, cgroup_id)) is not None
        }
        return self._stats.complete(memories, [levels.cgroups[uid] for uid in tmpfs_uids if uid in levels.cgroups])

    def close(self) -> None:
        """Close every fd."""
        for reader in (self._meminfo, self._node_files, self._pressure, self._stats, *self._files.values()):
            if reader:
                reader.close()
        for file in self._pod_pressure.values():
            file.close()
        self._files.clear()
        self._pod_pressure.clear()


def _row(cgroup_id: int, reader: CgroupMemory) -> Row:
    stat = reader.read()
    return (
        cgroup_id,
        0,
        stat.usage_bytes,
        NO_LIMIT_PAGES if (limit := reader.limit_bytes()) is None else limit,
        *_NOT_READ,
        stat.inactive_anon_bytes,
        stat.active_anon_bytes,
        stat.inactive_file_bytes,
        stat.active_file_bytes,
        stat.unevictable_bytes,
    )


def _open_pressure(scope: NodeScope) -> PressureFile | None:
    # A v1 cgroup has no pressure file: its stalls come from the reclaim programs alone.
    if scope.kind == "cgroup" and scope.hierarchy.version == 1:
        return None
    try:
        return PressureFile(NODE_MEMORY_PRESSURE if scope.kind == "machine" else scope.path / "memory.pressure")
    except SupportError:
        return None


def _has_psi() -> bool:
    try:
        PressureFile(NODE_MEMORY_PRESSURE).close()
    except SupportError:
        return False
    return True


def _psi_line(line: PressureLine | None) -> PsiLine | None:
    return PsiLine(line.avg10, line.avg60, line.avg300, line.total_us) if line else None
