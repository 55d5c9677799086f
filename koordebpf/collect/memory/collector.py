"""Reads the node: the one place where a cgroup may be gone in the middle of it.

Everything a call returns was read during the call; nothing is kept from an earlier one but open fds.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import Owner
from koordebpf.clock import Clock, SystemClock
from koordebpf.collect.memory.files import KeptCgroups, MemoryStats, largest
from koordebpf.collect.memory.pressure import PressureFiles
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import CgroupGone, ConfigError, KernelFileError
from koordebpf.events.layout import MEMCG_LRU_AT, MEMCG_SWAP_AT, NO_LIMIT_PAGES, NOT_KNOWN, sum_memcgs
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, task_count
from koordebpf.kernel.cgroup.subtree import has_process
from koordebpf.kernel.host.uncharged import UnchargedFiles
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.proc.meminfo import MEMINFO, Meminfo, MeminfoValues
from koordebpf.kernel.signals import Backend
from koordebpf.state.measured import (
    Measured,
    MemoryParts,
    NodeMeasure,
    OutsideMeasure,
    PodMeasure,
    StallParts,
    StrayMeasure,
    UnchargedMemory,
)
from koordebpf.state.series.growth import GrowthTable
from koordebpf.state.stalls.sums import LimitedCgroup, Row, ScanSums, cgroup_used_bytes, packed
from koordebpf.units import NS_PER_MS, PAGE_BYTES

_OUTSIDE_NS = 200 * NS_PER_MS  # Why: it takes 5 % of a round, and of these there are a hundred a second in a shortage
log = logging.getLogger(__name__)
_NOT_READ = (NOT_KNOWN, 0, 0, 0, 0)  # reclaimable slab and the four events of a row: they are not summed up
# Keys of the node in the growth table: what it uses, and its usage with page cache.
_NODE, _USAGE = "", "usage"


class MemcgScan:
    """Scans. What reads as it did in the last full scan, `last`, is not summed again.

    Args:
        node_files: of the node where it is a cgroup.
    """

    def __init__(self, scope: NodeScope, signals: Backend, index: CgroupIndex, node_files: CgroupMemory | None) -> None:
        self._scope = scope
        self._signals = signals
        self._index = index
        self._node_files = node_files
        self._files = KeptCgroups(scope, index)
        self._missed = 0
        self.last: ScanSums | None = None
        self.taken = 0  # full scans

    @property
    def can_scan(self) -> bool:
        """Tell whether it is by one scan."""
        return self._signals.can_scan

    def full(self) -> ScanSums:
        """Scan all that is needed of pods and node."""
        self.last = self._scan()
        self.taken += 1
        return self.last

    def again(self) -> ScanSums:
        """Return what the scan that `node` took says of pods too."""
        self.last = self._sums_of(self._signals.scanned())
        self.taken += 1
        return self.last

    def node(self) -> MemoryParts | None:
        """Scan, and return what the node's cgroup holds; None: it is gone."""
        if not self._signals.can_scan:
            return self._scan().all(self._scope.root_id)
        with self._rows() as rows:
            node = sum_memcgs(rows)
        if node is None or node[0] != self._scope.root_id:
            return None
        usage, swap, ia, aa, ifile, af, unevictable = (
            pages * PAGE_BYTES for pages in (node[2], node[MEMCG_SWAP_AT], *node[MEMCG_LRU_AT:])
        )
        return MemoryParts(usage, ia, aa, ifile, af, unevictable, swap_bytes=swap)

    def _scan(self) -> ScanSums:
        if not self._signals.can_scan:
            return ScanSums(packed(self._scan_files()), self._index.subtree_pod, 1)
        return self._sums_of(self._rows())

    def _sums_of(self, rows: memoryview) -> ScanSums:
        before, version = self.last, self._index.version
        with rows:
            copy = bytes(rows)  # compared in no time; a memoryview is compared byte by byte
        if before is not None and before.is_of(copy, version):
            return before
        return ScanSums(copy, self._index.subtree_pod, PAGE_BYTES, before, version, self._index.subtree_roots())

    def _rows(self) -> memoryview:
        # A memoryview releases itself at the end of its `with`.
        rows = self._signals.scan()
        if (missed := self._signals.scan_missed()) != self._missed:
            self._missed = missed
            log.warning("the scan's table is full: %d memory cgroups are not measured", missed)
        return rows

    def _scan_files(self) -> Iterator[Row]:
        # memory.stat is hierarchical: only the node and the pods are read, and nothing is summed up.
        strays = (owner.cgroup_id for owner in self._index.cgroups_without_pod())
        wanted = dict.fromkeys((*self._index.pod_cgroups().values(), *strays))
        self._files.keep_only(wanted)
        pods = [0, 0, 0, 0, 0]
        for cgroup_id in wanted:
            lru = self._files.read(cgroup_id, functools.partial(_row, cgroup_id))
            if lru is not None:
                pods = [sum(pair) for pair in zip(pods, lru[MEMCG_LRU_AT:], strict=True)]
                yield lru
        if self._node_files:
            try:
                node = _row(self._scope.root_id, self._node_files)
            except KernelFileError:  # who asks for the node reads it once more
                return
            own = (max(whole - part, 0) for whole, part in zip(node[MEMCG_LRU_AT:], pods, strict=True))
            yield (*node[:MEMCG_LRU_AT], *own)

    def close(self) -> None:
        """Close every fd."""
        self._files.close()


def _row(cgroup_id: int, reader: CgroupMemory) -> Row:
    stat = reader.read()
    return (
        cgroup_id,
        0,
        stat.usage_bytes,
        NO_LIMIT_PAGES if (limit := reader.limit_bytes()) is None else limit,
        reader.swap_bytes(stat.usage_bytes),
        *_NOT_READ,
        stat.inactive_anon_bytes,
        stat.active_anon_bytes,
        stat.inactive_file_bytes,
        stat.active_file_bytes,
        stat.unevictable_bytes,
    )


class _MachineFiles(Closing):
    # What is read of a machine: how full it is, and what no cgroup is charged.
    def __init__(self, meminfo: Path, uncharged: UnchargedFiles) -> None:
        self._meminfo, self._uncharged = Meminfo(meminfo), uncharged

    def read(self) -> tuple[MeminfoValues, None]:
        return self._meminfo.read(), None

    def read_all(self) -> tuple[MeminfoValues, UnchargedMemory]:
        values = self._meminfo.read()
        held = self._uncharged.read(values.balloon_bytes)
        return values, UnchargedMemory(
            held.zram_held_bytes,
            held.zram_stored_bytes,
            max((values.swap_total_bytes or 0) - (values.swap_free_bytes or 0), 0),
            held.arc_bytes,
            values.hugetlb_bytes or 0,
            values.kernel_bytes,
            held.balloon_bytes,
        )

    def close(self) -> None:
        """Close every fd."""
        self._meminfo.close()
        self._uncharged.close()


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


class _NodeReading:
    """What the node was as it was read last, and why it cannot be read now, or cannot be true; None: it can."""

    def __init__(self, scope: NodeScope, meminfo: Path) -> None:
        self._kind = scope.kind
        self._state = Degraded(meminfo if scope.kind == "machine" else scope.path, "nothing is evicted")
        self._last: NodeMeasure | None = None
        self.report, self.end = self._state.report, self._state.end

    @property
    def problem(self) -> str | None:
        problem = self._state.problem
        return None if problem is None else f"{self._state.name}: {problem}"

    def known(self, read: Callable[[], NodeMeasure]) -> NodeMeasure:
        try:
            self._last = read()
        except KernelFileError as error:
            where = "" if error.path == self._state.name else f"{error.path}: "
            self.report(f"{where}{error.rule}")
        return self._last or NodeMeasure(self._kind, 0, 0)


class MemoryCollector:
    """Measures the node and its pods, by one scan where the kernel has a cgroup iterator, else by files."""

    def __init__(
        self,
        scope: NodeScope,
        signals: Backend,
        index: CgroupIndex,
        clock: Clock | None = None,
        meminfo: Path = MEMINFO,
        uncharged: UnchargedFiles | None = None,
    ) -> None:
        self._now_ns = (clock or SystemClock()).now_ns
        self._scope = scope
        self._index = index
        self._growth: GrowthTable[str] = GrowthTable()
        self._machine = _MachineFiles(meminfo, uncharged or UnchargedFiles()) if scope.kind == "machine" else None
        self._reading = _NodeReading(scope, meminfo)
        self._node_files = CgroupMemory(scope.path, scope.hierarchy.version) if scope.kind == "cgroup" else None
        self._scan = MemcgScan(scope, signals, index, self._node_files)
        self._stats = MemoryStats(scope, index)
        self.pressure = PressureFiles(scope, index)
        self._levels: _Levels | None = None
        # What `node` made of the last scan, if it was its, and when that began.
        self._scanned: tuple[NodeMeasure, int] | None = None

    def node(self, threshold_bytes: int | None = None) -> NodeMeasure:
        """Return how full the node is now, as exactly as it takes to tell whether it is above the threshold.

        A cgroup whose usage with page cache is below it cannot be: then that usage stands in `used_bytes`, for one
        read. Only above it is the page cache looked for, by a scan: the node's own memory.stat lags behind its
        children's by up to 2 s (measured on 6.18), and the scan waits for every process that joins a cgroup, up to
        20 ms (cgroup_mutex).

        What cannot be read or cannot be true is a `problem`; the node is as it was read last then.

        Raises:  CgroupGone: the node's cgroup was removed.
        Cost:    25 µs for the machine; 5 µs for a cgroup, 0.2 ms for one of 330 with much page cache.
        """
        return self._reading.known(lambda: self._node(threshold_bytes))

    @property
    def problem(self) -> str | None:
        """Why it is not known how full the node is; None: it is, by the last reading."""
        return self._reading.problem

    def _node(self, threshold_bytes: int | None) -> NodeMeasure:
        if self._machine:
            return self._of_machine(*self._machine.read())
        assert self._node_files is not None  # one of the two, by the scope's kind
        usage = self._node_files.usage_bytes()
        if threshold_bytes is not None and usage < threshold_bytes:
            growth = self._growth.push(_USAGE, self._now_ns(), usage)
            return NodeMeasure("cgroup", self._limit_bytes(self._node_files), usage, growth)
        since_ns = self._now_ns()
        node = self._cgroup(self._node_files, self._scan.node())
        if self._scan.can_scan:
            self._scanned = node, since_ns
        return node

    def everything(
        self,
        stalls: Mapping[str, StallParts],
        shmem_uids: Collection[str],
        node_stall: StallParts | None,
        sampled: NodeMeasure | None = None,
    ) -> Measured:
        """Return the node and all its pods as they are now.

        Args:
            stalls: of the last seconds, by pod.
            shmem_uids: pods whose shmem must be known, as for a tmpfs that outlives them: one more file each, which is
                read too for pods that hold much beside page cache and process memory.
            node_stall: of the last seconds.
            sampled: what `node` said a moment ago: the scan it took, if it took one, serves for this too.
        Raises:  CgroupGone: the node's cgroup was removed.
        """
        since_ns = self._now_ns()
        scanned, self._scanned = self._scanned, None
        if scanned is not None and sampled is scanned[0]:
            _, since_ns = scanned
            sums = self._scan.again()
            node, _ = scanned
        elif self._machine:
            sums, machine = self._scan.full(), self._machine
            node = self._reading.known(lambda: self._of_machine(*machine.read_all()))
        else:
            assert self._node_files is not None
            sums, files = self._scan.full(), self._node_files
            node = self._reading.known(lambda: self._cgroup(files, sums.all(self._scope.root_id)))
        pods: list[PodMeasure] = []
        strays: list[StrayMeasure] = []
        now_ns = self._now_ns()
        if self._levels is None or self._levels.version != self._index.version:
            self._levels = _Levels.of(self._index)
        cgroups, without_pod = self._levels.cgroups, self._levels.without_pod
        memories = self._memories(sums, self._levels, shmem_uids)
        outside, memories = self._measure_outside(sums, memories)
        for uid, cgroup_id in cgroups.items():
            memory = memories.get(cgroup_id)
            growth = self._growth.push(uid, now_ns, memory.held_bytes) if memory else None
            pods.append(PodMeasure(uid, cgroup_id, memory, growth, stalls.get(uid)))
        for owner in without_pod:
            strays.append(StrayMeasure(owner.cgroup_id, owner.path, memories.get(owner.cgroup_id), owner.pod_uid))
        self._growth.keep_only([_NODE, _USAGE, *(pod.uid for pod in pods)])
        self.pressure.keep_only(cgroups.values())
        some, full = self.pressure.node()
        node = msgspec.structs.replace(node, stall=node_stall, psi_some=some, psi_full=full)
        return Measured(self._now_ns(), since_ns, node, tuple(pods), tuple(strays), outside=outside)

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

    def populated(self, cgroup_ids: Collection[int]) -> set[int]:
        """Return those of these cgroups in which, or below which, there are processes.

        Cost:    as `has_process` each.
        """
        hierarchy, paths = self._scope.hierarchy, {each: self._index.path(each) for each in cgroup_ids}
        return {
            cgroup_id
            for cgroup_id, path in paths.items()
            if path is not None and has_process(hierarchy.mount_point / path, hierarchy.version)
        }

    def outside(self) -> dict[int, int]:
        """Return what the cgroups outside all pods held at the last full measurement, `ScanSums.outside`.

        Without a scan there is none: their files are not read.
        """
        return self._scan.last.outside() if self._scan.last else {}

    @property
    def sums(self) -> tuple[int, ScanSums | None]:
        """How many full measurements there were, and what the last one summed up; None: there was none yet."""
        return self._scan.taken, self._scan.last

    @property
    def can_scan(self) -> bool:
        """Whether `sums` has every cgroup; else pods alone, each with what is below it in one row."""
        return self._scan.can_scan

    def swap_bytes(self, cgroup_id: int | None) -> int:
        """Return what a cgroup had in swap at the last full measurement, `ScanSums.swap_bytes`."""
        sums = self._scan.last
        return sums.swap_bytes(cgroup_id) if sums and cgroup_id is not None else 0

    def limited(self, pod_levels: Collection[int]) -> list[LimitedCgroup]:
        """Return the pods and containers with a limit at the last full measurement, `ScanSums.limited`."""
        return self._scan.last.limited(pod_levels) if self._scan.last else []

    def _limit_bytes(self, files: CgroupMemory) -> int:
        limit = files.limit_bytes()
        if limit is None:
            raise ConfigError("--node-cgroup", str(self._scope.path), "lost its memory limit")
        return limit

    def _of_machine(self, values: MeminfoValues, uncharged: UnchargedMemory | None) -> NodeMeasure:
        self._reading.report(values.problem)
        growth = self._growth.push(_NODE, self._now_ns(), values.used_bytes)
        return NodeMeasure("machine", values.mem_total_bytes, values.used_bytes, growth, uncharged=uncharged)

    def _cgroup(self, files: CgroupMemory, memory: MemoryParts | None) -> NodeMeasure:
        limit = self._limit_bytes(files)
        if memory is None:
            files.read()  # raises what is odd in it
            raise CgroupGone(str(self._scope.path))
        if self._scope.hierarchy.version == 2:
            # v1 does not show it: reclaimable slab counts as used there.
            stat = files.read()
            memory = msgspec.structs.replace(memory, slab_reclaimable_bytes=stat.slab_reclaimable_bytes)
        self._reading.report(None)
        used = cgroup_used_bytes(memory)
        growth = self._growth.push(_NODE, self._now_ns(), used)
        return NodeMeasure("cgroup", limit, used, growth, memory)

    # By cgroup id, of pods and of cgroups without a known pod.
    def _memories(self, sums: ScanSums, levels: _Levels, shmem_uids: Collection[str]) -> Mapping[int, MemoryParts]:
        memories = {
            cgroup_id: memory
            for cgroup_id, uid in levels.uids.items()
            if (memory := sums.pod(uid, cgroup_id)) is not None
        }
        return self._stats.complete(memories, [levels.cgroups[uid] for uid in shmem_uids if uid in levels.cgroups])

    # With the memory of pods, to which is added what they have outside of their own cgroups: without that it is summed
    # up several times a second at most.
    def _measure_outside(
        self, sums: ScanSums, memories: Mapping[int, MemoryParts]
    ) -> tuple[tuple[OutsideMeasure, ...], Mapping[int, MemoryParts]]:
        outside, sandboxes, prefix = self._stats.outside, self._index.sandboxes(), self._scope.node_path
        now_ns, version, (at_ns, of_version, last) = self._now_ns(), self._index.version, outside.kept
        if not sandboxes and version == of_version and now_ns - at_ns < _OUTSIDE_NS:
            return last, memories
        found = outside.of_scan(sums, memories) if self._scan.can_scan else outside.of_files(memories)
        around: list[OutsideMeasure] = []
        elsewhere: dict[int, MemoryParts] = {}
        for cgroup_id, memory in found:
            pod = sandboxes.get(cgroup_id)
            if pod is not None and (its := elsewhere.get(pod) or memories.get(pod)) is not None:
                elsewhere[pod] = msgspec.structs.replace(its, elsewhere_bytes=its.elsewhere_bytes + memory.held_bytes)
            elif (path := self._index.path(cgroup_id)) is not None:
                name = path.removeprefix(prefix).lstrip("/")
                around.append(OutsideMeasure(name, memory.held_bytes, memory.kernel_bytes or 0))
        last = largest(around)
        outside.kept = now_ns, version, last
        return last, {**memories, **elsewhere} if elsewhere else memories

    def close(self) -> None:
        """Close every fd."""
        self._reading.end()
        for reader in (self._machine, self._node_files, self._stats, self._scan, self.pressure):
            if reader:
                reader.close()
