"""Memory files of cgroups: of running pods through kept fds, and of all cgroups at one moment.

By one scan where the backend has one, else file by file. LRU lists and refaults come from memory.stat of both versions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import KernelProblem
from koordebpf.events.layout import decode_memcgs
from koordebpf.events.records import MemcgSample
from koordebpf.kernel.cgroup.files import Version
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.table import keyed, number
from koordebpf.kernel.io.text_file import KeptFile
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.state.pods.facts import PodFacts
from koordebpf.units import PAGE_BYTES

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
