"""Passes by the kernel's cgroup iterator: CPU time of the cgroups that have a row, memory of all, without a copy."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.lockdown import opening
from koordebpf.kernel.bpf.maps import Element
from koordebpf.kernel.bpf.programs import object_path
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.signals import LayoutCheck, SignalSource

_FEATURE = "CPU time of all cgroups in one pass"
_PROGRAM = "scan_cpu"
_STRUCTS = ("koord_cpu_key", "koord_cpu", "koord_cpu_settings")
_WALK = struct.Struct("<3Q128s")  # struct koord_cpu_settings, from `pass` on
_WALK_AT = 8
_KEY = struct.Struct("<2Q")
_SLOT = struct.Struct("<I")
_MEMCGS_AT = 36  # offset in koord_settings; memcgs_full follows
_FIRST_ENTRIES = 128
_COUNTS = struct.Struct("<2I")


class CpuHierarchy(msgspec.Struct, frozen=True):
    """One hierarchy to walk: from which directory, and whether it is cgroup v2."""

    root: Path
    is_v2: bool


class CpuScan(Closing):
    """Writes rows of struct koord_cpu, one for each cgroup that `follow` has given one.

    Source:  v1: struct cpuacct, what cpuacct.usage sums up; v2: struct cgroup.bstat and the sums of each CPU that were
             not added to it yet, what cpu.stat shows; both: struct task_group.cfs_bandwidth. By iter/cgroup (6.1).
    Raises:  SupportError: no libbpf, no object, one of another layout, or the kernel refuses it. CgroupGone: a root.
    Cost:    docs/colocation/usage.md.
    """

    def __init__(self, hierarchies: Sequence[CpuHierarchy], check_layout: LayoutCheck) -> None:
        self._hierarchies = tuple(hierarchies)
        self._pass = 0
        self._links: list[int] = []
        self._settings: Element | None = None
        self._rows: MappedArray | None = None
        self._object: libbpf.Object | None = None
        with opening(_FEATURE, self.close):
            try:
                self._open(check_layout)
            except FileNotFoundError as error:
                raise CgroupGone(str(error.filename)) from None

    def _open(self, check_layout: LayoutCheck) -> None:
        opened = self._object = libbpf.Object(object_path("cpu_iter"))
        for name in _STRUCTS:
            check_layout(name, opened.layout(name))
        handles = dict(opened.programs())
        opened.set_target(handles[_PROGRAM], "cgroup")
        opened.set_max_entries("cpu_distances", max(libbpf.library().libbpf_num_possible_cpus(), 1))
        opened.load()
        self._slots = opened.map("cpu_slots", _SLOT.size)
        self._settings = Element(opened.map("cpu_settings", _WALK_AT + _WALK.size), writable=True)
        self._rows = MappedArray(opened.map("cpu_rows", 0))
        self.most = self._rows.max_entries
        for number, hierarchy in enumerate(self._hierarchies):
            fd = os.open(hierarchy.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._links.append(opened.attach_cgroup_iter(f"{_PROGRAM} {number}", handles[_PROGRAM], fd))
            finally:
                os.close(fd)

    def follow(self, hierarchy: int, cgroup_id: int, slot: int) -> bool:
        """Give a cgroup of one of the hierarchies a row, below `most`; return False where too many have one."""
        return self._slots.update(_KEY.pack(cgroup_id, hierarchy), _SLOT.pack(slot))

    def unfollow(self, hierarchy: int, cgroup_id: int) -> None:
        """Take a cgroup's row from it."""
        self._slots.delete(_KEY.pack(cgroup_id, hierarchy))

    def run(self, rows: int) -> tuple[int, memoryview]:
        """Walk, and return the number of the pass and so many rows from the first one; they hold until the next pass.

        A row of another pass is of what was not there.
        Raises:  OSError: a hierarchy's root is gone.
        """
        assert self._settings is not None and self._rows is not None  # not closed
        self._pass += 1
        for number, (hierarchy, link) in enumerate(zip(self._hierarchies, self._links, strict=True)):
            self._settings.write(_WALK_AT, _WALK.pack(self._pass, number, hierarchy.is_v2, b""))
            libbpf.run_iter(link)
        return self._pass, self._rows.first(rows)

    def close(self) -> None:
        """Detach and free everything; twice is harmless. Raises BufferError: rows of it are still held."""
        self._links.clear()
        for part in (self._rows, self._settings, self._object):
            if part is not None:
                part.close()


def support_of_cpu_pass(root: CpuHierarchy, check_layout: LayoutCheck) -> SignalSource:
    """Return how usage of pods is measured here, found by one pass."""
    try:
        with CpuScan([root], check_layout) as scan:
            scan.run(0)[1].release()
    except (SupportError, CgroupGone, OSError) as error:
        reason, remedy = (error.reason, error.remedy) if isinstance(error, SupportError) else (str(error), "None.")
        return SignalSource(_FEATURE, "", False, reason, remedy, "files instead, 128 cgroups a second")
    return SignalSource(_FEATURE, "BPF iterator cgroup, where usage is measured", works=True)


class MemcgScan:
    """The rows of the last pass. They are the map's own memory: they hold until the next pass.

    Args:
        link_fd: of the attached iterator.
        settings: the map's element, in which the programs count their rows.
        memcgs: struct koord_memcg.
    """

    def __init__(self, link_fd: int, settings: Element, memcgs: libbpf.Map) -> None:
        self._link_fd = link_fd
        self._settings = settings
        self._memcgs = MappedArray(memcgs)

    def run(self) -> memoryview:
        """Return whole struct koord_memcg rows, one for each memory cgroup below the root, parents first.

        Raises:  OSError: the root is gone.
        """
        self._settings.write(_MEMCGS_AT, bytes(_COUNTS.size))
        libbpf.run_iter(self._link_fd)
        return self.rows()

    def rows(self) -> memoryview:
        """Return the rows of the last pass; none before the first."""
        return self._memcgs.first(self._counts()[0])

    def missed(self) -> int:
        """Return how many cgroups the last pass could not hold."""
        return self._counts()[1]

    def _counts(self) -> tuple[int, ...]:
        return _COUNTS.unpack_from(self._settings.read(), _MEMCGS_AT)

    def close(self) -> None:
        """Give the memory back; twice is harmless. Raises BufferError: rows of it are still held."""
        self._memcgs.close()


class MappedArray:
    """A mapped array, as far as it was filled: all of what is mapped counts as the agent's memory, 1.9 MiB."""

    def __init__(self, array: libbpf.Map) -> None:
        """Map the first elements."""
        self._array = array
        self._grow(1)

    @property
    def max_entries(self) -> int:
        """How many elements it has."""
        return self._array.max_entries

    def first(self, count: int) -> memoryview:
        """Return so many of the first elements, at most all."""
        if count > self._entries:
            self._grow(count)
        return self._view[: count * self._array.value_bytes]

    # Rows of the last pass that are still held keep its mapping.
    def _grow(self, count: int) -> None:
        self._entries = min(max(_FIRST_ENTRIES, 1 << (count - 1).bit_length()), self._array.max_entries)
        self._memory = self._array.memory(self._entries)
        self._view = memoryview(self._memory)

    def close(self) -> None:
        """Give the memory back; twice is harmless. Raises BufferError: some of it is still held."""
        self._view.release()
        self._memory.close()
