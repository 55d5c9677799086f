"""Memory files of cgroups through kept fds, what cgroups outside pods hold, and all cgroups at one moment.

By one scan where the backend has one, else file by file. LRU lists and refaults come from memory.stat of both versions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from pathlib import Path
from typing import TypeVar

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import KernelProblem
from koordebpf.events.layout import decode_memcgs
from koordebpf.events.records import MemcgSample
from koordebpf.kernel.cgroup.files import Version
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, CgroupMemoryStat, MemoryHierarchy
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.table import keyed, number
from koordebpf.kernel.io.text_file import KeptFile
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.state.measured import OTHERS, MemoryParts, OutsideMeasure
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.stalls.sums import ScanSums
from koordebpf.units import MIB, PAGE_BYTES

T = TypeVar("T")
_MOST = 16  # Why: 40 µs each; a node is rarely short because of more pods than these
_LEAST_BYTES = 32 * MIB  # Why: page tables, stacks and slab of an ordinary pod
_LEAST_SHARE = 8  # Why: with less than an eighth of the rest the credit is near enough
_MOST_OUTSIDE = 16  # Why: systemd has some ten slices and scopes below the root
_STAT_BYTES = 1 << 13  # memory.stat of 6.18 has 1.6 KiB
_REFAULT, _ACTIVATE = "workingset_refault", "workingset_activate"
_ROWS = (
    *(f"{name}_{kind}".encode() for name in ("inactive", "active", _REFAULT, _ACTIVATE) for kind in ("anon", "file")),
    _REFAULT.encode(),
    _ACTIVATE.encode(),
)
# On v1 rows without children come first, and those with them are called total_….
_PREFIX = {1: b"total_", 2: b""}
_WANTED = {version: frozenset(prefix + name for name in _ROWS) for version, prefix in _PREFIX.items()}
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
_LRU = ("inactive_anon_bytes", "active_anon_bytes", "inactive_file_bytes", "active_file_bytes", "unevictable_bytes")


class LruStat(KeptFile):
    """memory.stat and the usage of one cgroup, through kept fds."""

    def __init__(self, directory: Path, version: Version) -> None:
        """Open both files.

        Raises:  OSError: the cgroup is gone.
        """
        self._fd = os.open(directory / "memory.stat", os.O_RDONLY | os.O_CLOEXEC)
        self._usage = os.open(directory / _USAGE[version], os.O_RDONLY | os.O_CLOEXEC)
        self._path, self._usage_path = f"{directory}/memory.stat", f"{directory}/{_USAGE[version]}"
        self._wanted, self._cut = _WANTED[version], len(_PREFIX[version])

    def rows(self) -> dict[bytes, int]:
        """Return the rows by name, without total_.

        Cost:    20 µs.
        Raises:  OSError: the cgroup is gone.
        """
        found = keyed(self._path, os.pread(self._fd, _STAT_BYTES, 0), self._wanted).values
        return {name[self._cut :]: count for name, count in found.items()}

    def usage_bytes(self) -> int:
        """Return all memory that the cgroup is charged.

        Raises:  OSError: the cgroup is gone. KernelFileError: not a number.
        """
        return number(self._usage_path, os.pread(self._usage, 32, 0))

    def close(self) -> None:
        """Close both; twice is harmless."""
        if self._fd >= 0:
            os.close(self._usage)
        super().close()


def file_bytes(rows: dict[bytes, int]) -> int:
    """Return the bytes of the file LRU lists."""
    return rows.get(b"inactive_file", 0) + rows.get(b"active_file", 0)


def anon_bytes(rows: dict[bytes, int]) -> int:
    """Return the bytes of the anonymous LRU lists."""
    return rows.get(b"inactive_anon", 0) + rows.get(b"active_anon", 0)


def file_pages(rows: dict[bytes, int], name: bytes) -> int | None:
    """Return the row `name` of files; None: this kernel does not count it.

    Before Linux 5.9 one row counted anonymous memory and files together.
    """
    return rows.get(name + b"_file", rows.get(name))


class PodFiles(Closing):
    """Finds running pods and keeps their files open, until `keep_only` leaves a pod out."""

    def __init__(self, index: CgroupIndex, known: ClusterView, hierarchy: MemoryHierarchy) -> None:
        self._index = index
        self._known = known
        self._hierarchy = hierarchy
        self._stats: dict[int, LruStat] = {}
        self._pressures: dict[int, PressureFile] = {}

    def running(self) -> Iterator[tuple[PodFacts, int, str]]:
        """Yield each running pod with its cgroup's id and path.

        A directory counts as a pod's only where it bears that pod's own UID, whatever its annotations say.
        """
        index = self._index
        cgroups = index.pod_cgroups()
        for facts in self._known.facts:
            cgroup_id = cgroups.get(facts.uid)
            path = index.path(cgroup_id) if cgroup_id is not None else None
            if cgroup_id is None or path is None or facts.phase != "Running":
                continue
            if bears(path.rpartition("/")[2], index.names_to_act_on(facts.uid)):
                yield facts, cgroup_id, path

    def stat(self, cgroup_id: int, path: str) -> LruStat:
        """Return memory.stat and the usage of a pod.

        Raises:  OSError: the cgroup is gone.
        """
        stat = self._stats.get(cgroup_id)
        if stat is None:
            stat = self._stats[cgroup_id] = LruStat(self._hierarchy.mount_point / path, self._hierarchy.version)
        return stat

    def stalled_us(self, cgroup_id: int, path: str) -> int | None:
        """Return for how long some task of a pod stalled; None: the kernel does not account it, or the pod is gone."""
        try:
            file = self._pressures.get(cgroup_id)
            if file is None:
                directory = self._hierarchy.mount_point / path
                file = self._pressures[cgroup_id] = PressureFile(directory / "memory.pressure")
            return file.read().some.total_us
        except KernelProblem:
            return None

    def keep_only(self, cgroups: set[int]) -> None:
        """Close the files of all other cgroups."""
        for cgroup_id in self._stats.keys() - cgroups:
            self._stats.pop(cgroup_id).close()
        for cgroup_id in self._pressures.keys() - cgroups:
            self._pressures.pop(cgroup_id).close()

    def close(self) -> None:
        """Close every fd."""
        self.keep_only(set())


class KeptCgroups(Closing):
    """Reads memory files of some cgroups; their fds are kept until `keep_only` leaves the cgroup out."""

    def __init__(self, scope: NodeScope, index: CgroupIndex) -> None:
        self._scope = scope
        self._index = index
        self._files: dict[int, CgroupMemory] = {}

    def read(self, cgroup_id: int, what: Callable[[CgroupMemory], T]) -> T | None:
        """Return what a cgroup's files say; None: it is gone, has no such files, or they are odd."""
        files = self._files.get(cgroup_id)
        if files is None:
            path = self._index.path(cgroup_id)
            if path is None:
                return None
            hierarchy = self._scope.hierarchy
            files = self._files[cgroup_id] = CgroupMemory(hierarchy.mount_point / path, hierarchy.version)
        try:
            return what(files)
        except KernelProblem:  # SupportError: on v2 the controller is not enabled there
            self._files.pop(cgroup_id).close()
            return None

    def keep_only(self, cgroups: Collection[int]) -> None:
        """Close the files of all other cgroups."""
        for cgroup_id in self._files.keys() - cgroups:
            self._files.pop(cgroup_id).close()

    def close(self) -> None:
        """Close every fd."""
        self.keep_only(())


class MemoryStats(KeptCgroups):
    """Completes pods' memory: shmem, and of what is on no list of the scan how much is really the kernel's.

    The rest may be reclaimable slab, which the node counts as available, huge pages, which go back to their pool, and
    what removed containers of the pod left behind: page cache, and files on its tmpfs.

    Attributes:
        outside: measures what is outside of all pods.
    """

    def __init__(self, scope: NodeScope, index: CgroupIndex) -> None:
        super().__init__(scope, index)
        self.outside = OutsideMemory(scope, index)

    def complete(self, memories: Mapping[int, MemoryParts], tmpfs: Collection[int] = ()) -> Mapping[int, MemoryParts]:
        """Return `memories` with those completed that need it: with a large rest, or one of `tmpfs`. By cgroup id.

        Cost:    30 µs for each of those, at most `_MOST` and `tmpfs`.
        """
        large = [cgroup_id for cgroup_id, memory in memories.items() if _has_large_rest(memory)]
        wanted = {*nlargest(_MOST, large, lambda cgroup_id: memories[cgroup_id].kernel_bytes or 0)}
        wanted.update(cgroup_id for cgroup_id in tmpfs if cgroup_id in memories)
        self.keep_only(wanted)
        completed = {
            cgroup_id: with_stat(memories[cgroup_id], stat, self._scope.kind)
            for cgroup_id in wanted
            if (stat := self.read(cgroup_id, CgroupMemory.read)) is not None
        }
        return {**memories, **completed} if completed else memories

    def close(self) -> None:
        """Close every fd."""
        super().close()
        self.outside.close()


def with_stat(memory: MemoryParts, stat: CgroupMemoryStat, scope: str) -> MemoryParts:
    """Return the memory with what `stat` adds; its lists may be older by a moment, so only what is more there counts.

    Huge pages of a pool go back to it, and for the machine the whole pool is used in any case; a node cgroup is charged
    less without them.
    """
    anon_bytes = stat.inactive_anon_bytes + stat.active_anon_bytes
    file_bytes = stat.inactive_file_bytes + stat.active_file_bytes
    left_anon = max(anon_bytes - memory.inactive_anon_bytes - memory.active_anon_bytes, 0)
    left_file = max(file_bytes - memory.inactive_file_bytes - memory.active_file_bytes, 0)
    pool_bytes = (stat.hugetlb_bytes or 0) if scope == "machine" else 0
    slab_bytes = memory.slab_reclaimable_bytes if stat.slab_reclaimable_bytes is None else stat.slab_reclaimable_bytes
    lists = memory.koordinator_used_bytes + memory.inactive_file_bytes + memory.active_file_bytes
    kernel = memory.usage_bytes - lists - left_anon - left_file - (slab_bytes or 0) - pool_bytes
    return msgspec.structs.replace(
        memory,
        inactive_anon_bytes=memory.inactive_anon_bytes + left_anon,
        inactive_file_bytes=memory.inactive_file_bytes + left_file,
        shmem_bytes=stat.shmem_bytes,
        slab_reclaimable_bytes=slab_bytes,
        kernel_bytes=max(kernel, 0),
    )


def _has_large_rest(memory: MemoryParts) -> bool:
    rest = memory.kernel_bytes or 0
    return rest >= _LEAST_BYTES and rest * _LEAST_SHARE > memory.koordinator_used_bytes


class OutsideMemory(KeptCgroups):
    """What the cgroups outside all pods hold, by the node's children, the kubelet's directories and sandboxes' cgroups.

    Which of them are highest, and what lies in which, holds for one version of the index.
    """

    def __init__(self, scope: NodeScope, index: CgroupIndex) -> None:
        super().__init__(scope, index)
        self._version = -1
        # What was made of it last: when, and of which version of the index; nothing yet.
        self.kept: tuple[int, int, tuple[OutsideMeasure, ...]] = (0, -1, ())
        self._excluded: dict[int, tuple[int, ...]] = {}  # by files: highest cgroups, with what is another's right below

    def of_scan(self, sums: ScanSums, pods: Mapping[int, MemoryParts]) -> list[tuple[int, MemoryParts]]:
        """Return each with its own memory, by cgroup id.

        Args:
            sums: of a scan.
            pods: by cgroup id, `MemoryStats.complete`.
        Cost:    30 µs, and 30 µs for each with much memory on no LRU list, at most `_MOST`.
        """
        found = sums.subtrees()
        large = [each for each in found if _has_large_rest(each.memory) and not self._is_machine(each.top)]
        wanted = {each.top for each in nlargest(_MOST, large, lambda each: each.memory.kernel_bytes or 0)}
        self.keep_only(wanted)
        if not wanted:
            return [(each.top, each.memory) for each in found]
        lists: dict[int, tuple[int, int]] = {}  # anonymous memory and page cache with all that is below
        completed: list[tuple[int, MemoryParts]] = []
        for top, memory, excluded in reversed(found):
            below = [lists.get(each) or _lists(pods.get(each)) for each in excluded]
            anon, file = sum([each for each, _ in below]), sum([each for _, each in below])
            if top in wanted and (stat := self.read(top, CgroupMemory.read)) is not None:
                its = with_stat(memory, _without(stat, anon, file) if excluded else stat, self._scope.kind)
            else:
                its = memory
            own_anon, own_file = _lists(its)
            lists[top] = anon + own_anon, file + own_file
            completed.append((top, its))
        return completed

    def of_files(self, pods: Mapping[int, MemoryParts]) -> list[tuple[int, MemoryParts]]:
        """Return the same where there is no scan.

        Cost:    20 µs for each.
        """
        if self._version != self._index.version:
            self._version, self._excluded = self._index.version, self._nesting()
        self.keep_only(self._excluded)
        stats = {top: stat for top in self._excluded if (stat := self._stat(top)) is not None}
        wholes = {top: parts_of(stat) for top, stat in stats.items()}
        return [
            (top, _less(whole, [each for one in self._excluded[top] if (each := wholes.get(one) or pods.get(one))]))
            for top, whole in wholes.items()
        ]

    def _nesting(self) -> dict[int, tuple[int, ...]]:
        root_id, index = self._scope.root_id, self._index
        pods = {*index.pod_cgroups().values(), *(each.cgroup_id for each in index.cgroups_without_pod())}
        tops = {root_id, *index.children(root_id), *index.subtree_roots()} - pods
        excluded: dict[int, list[int]] = {top: [] for top in tops}
        for each in (*(tops - {root_id}), *pods):
            above = next((one for one in index.above(each) if one in tops), root_id)
            excluded.setdefault(above, []).append(each)
        return {top: tuple(found) for top, found in excluded.items()}

    # The machine's root has no usage of its own on v2; on v1 it has one that is none of a memory cgroup.
    def _stat(self, top: int) -> CgroupMemoryStat | None:
        return self.read(top, (lambda files: files.stat(0)) if self._is_machine(top) else CgroupMemory.read)

    def _is_machine(self, top: int) -> bool:
        return self._scope.kind == "machine" and top == self._scope.root_id


def _lists(memory: MemoryParts | None) -> tuple[int, int]:
    if memory is None:
        return 0, 0
    anon = memory.inactive_anon_bytes + memory.active_anon_bytes
    return anon, memory.inactive_file_bytes + memory.active_file_bytes


# Of reclaimable slab and huge pages it is not known how much is of what is below.
def _without(stat: CgroupMemoryStat, anon_bytes: int, file_bytes: int) -> CgroupMemoryStat:
    return msgspec.structs.replace(
        stat,
        inactive_anon_bytes=max(stat.inactive_anon_bytes + stat.active_anon_bytes - anon_bytes, 0),
        active_anon_bytes=0,
        inactive_file_bytes=max(stat.inactive_file_bytes + stat.active_file_bytes - file_bytes, 0),
        active_file_bytes=0,
        slab_reclaimable_bytes=None,
        hugetlb_bytes=None,
    )


def parts_of(stat: CgroupMemoryStat) -> MemoryParts:
    """Return a cgroup's memory as its memory.stat has it, without what only a scan or another file has."""
    return MemoryParts(
        stat.usage_bytes,
        stat.inactive_anon_bytes,
        stat.active_anon_bytes,
        stat.inactive_file_bytes,
        stat.active_file_bytes,
        stat.unevictable_bytes,
        slab_reclaimable_bytes=stat.slab_reclaimable_bytes,
    )


# What is left of a cgroup without some of those below it, which were read later and may have grown.
def _less(whole: MemoryParts, below: Sequence[MemoryParts]) -> MemoryParts:
    def rest(name: str) -> int:
        return max((getattr(whole, name) or 0) - sum([getattr(each, name) or 0 for each in below]), 0)

    usage, slab, lru = rest("usage_bytes"), rest("slab_reclaimable_bytes"), {name: rest(name) for name in _LRU}
    kernel = max(usage - sum(lru.values()) - slab, 0)
    return MemoryParts(usage, **lru, slab_reclaimable_bytes=slab, kernel_bytes=kernel)


def largest(found: Iterable[OutsideMeasure]) -> tuple[OutsideMeasure, ...]:
    """Return the largest ones of these, and the rest as one with the path `others`; without those that hold nothing.

    >>> [each.path for each in largest([OutsideMeasure("a", 0), OutsideMeasure("b", 2), OutsideMeasure("", 3)])]
    ['', 'b']
    """
    rows = sorted((each for each in found if each.held_bytes), key=lambda each: (-each.held_bytes, each.path))
    if rest := rows[_MOST_OUTSIDE:]:
        held, kernel = sum([each.held_bytes for each in rest]), sum([each.kernel_bytes for each in rest])
        rows[_MOST_OUTSIDE:] = [OutsideMeasure(OTHERS, held, kernel)]
    return tuple(rows)


def memcg_samples(watch: NodeWatch) -> list[MemcgSample]:
    """Return them with their children in every number, parents first.

    Cost:    0.1 ms for 330 cgroups by a scan, and 2 ms to decode and add up; 80 µs for each by files.
    """
    if not watch.signals.can_scan:
        return list(_by_files(watch))
    with watch.signals.scan() as rows:
        return _with_children(list(decode_memcgs(rows, PAGE_BYTES)))


def _by_files(watch: NodeWatch) -> Iterator[MemcgSample]:
    hierarchy = watch.scope.hierarchy
    paths = {path: cgroup_id for cgroup_id in watch.index if (path := watch.index.path(cgroup_id)) is not None}
    for path, cgroup_id in sorted(paths.items()):
        try:
            with CgroupMemory(hierarchy.mount_point / path, hierarchy.version) as files:
                stat, limit, events = files.read(), files.limit_bytes(), files.events()
                swap_bytes = files.swap_bytes(stat.usage_bytes)
        except KernelProblem:  # SupportError: on v2 the controller is not enabled there
            continue
        yield MemcgSample(
            cgroup_id,
            paths.get(path.rpartition("/")[0], 0) if path else 0,
            stat.usage_bytes,
            limit,
            stat.inactive_anon_bytes,
            stat.active_anon_bytes,
            stat.inactive_file_bytes,
            stat.active_file_bytes,
            stat.unevictable_bytes,
            swap_bytes,
            *events,
        )


# The LRU sizes of a scan are each cgroup's own: added up from the lowest to the root, which comes first.
def _with_children(samples: Sequence[MemcgSample]) -> list[MemcgSample]:
    sums = {each.cgroup_id: list(_lru(each)) for each in samples}
    for each in reversed(samples):
        if above := sums.get(each.parent_id):
            above[:] = [one + other for one, other in zip(above, sums[each.cgroup_id], strict=True)]
    return [msgspec.structs.replace(each, **dict(zip(_LRU, sums[each.cgroup_id], strict=True))) for each in samples]


def _lru(each: MemcgSample) -> tuple[int, ...]:
    return tuple(getattr(each, name) for name in _LRU)
