"""/proc/meminfo, and meminfo of each NUMA node, through kept fds."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.table import Keyed, keyed
from koordebpf.kernel.io.text_file import ProcFile
from koordebpf.kernel.proc.cpu_topology import SYSFS
from koordebpf.units import KIB, format_bytes

MEMINFO = Path("/proc/meminfo")
_FILE_BYTES = 1 << 14  # 1.5 KiB on 6.18
# Of a NUMA node; the four behind the first are free or can be reclaimed.
_NODE_ROWS = (b"MemTotal", b"MemFree", b"Active(file)", b"Inactive(file)", b"SReclaimable")
_NODE = re.compile(r"node([0-9]+)")
_NEEDED = (b"MemTotal", b"MemFree", b"MemAvailable")
_OPTIONAL = (b"Cached", b"SReclaimable", b"SwapTotal", b"SwapFree", b"Hugetlb", b"Balloon")
# What MemAvailable never has in it (mm/show_mem.c si_mem_available); Percpu since Linux 4.19, SecPageTables since 6.1.
_KERNEL = (b"SUnreclaim", b"KernelStack", b"PageTables", b"SecPageTables", b"Percpu")
_ROWS = frozenset(_NEEDED + _OPTIONAL + _KERNEL)


class NumaMeminfo(Closing):
    """Reads /sys/devices/system/node/node*/meminfo. A node without that file is left out.

    Source:  drivers/base/node.c node_read_meminfo; koordinator pkg/koordlet/util/meminfo.go.
    """

    def __init__(self, sysfs: Path = SYSFS) -> None:
        """Open the files of the nodes that are there now."""
        self._fds: dict[int, tuple[Path, int]] = {}
        folder = sysfs / "node"
        for path in folder.iterdir() if folder.is_dir() else ():
            if found := _NODE.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    file = path / "meminfo"
                    self._fds[int(found[1])] = file, os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(sorted(self._fds))

    def used_bytes(self) -> dict[int, int]:
        """Return by node MemTotal without what is free or can be reclaimed: no node has a row MemAvailable.

        Raises:  KernelFileError: a row is missing or no number of kB. OSError: a node was removed.
        Cost:    15 µs a node.
        """
        used: dict[int, int] = {}
        for node, (path, fd) in self._fds.items():
            total, *available = _of_node(node, path, os.pread(fd, _FILE_BYTES, 0), _NODE_ROWS)
            used[node] = max(total - sum(available), 0)
        return used

    def close(self) -> None:
        """Close every fd; twice is harmless."""
        for _, fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def numa_total_bytes(node: int, path: Path) -> int:
    """Return MemTotal of a NUMA node's meminfo: all its memory, with huge pages.

    Raises:  KernelFileError: the row is missing or no number of kB. OSError: it cannot be read.
    """
    (total,) = _of_node(node, path, path.read_bytes(), _NODE_ROWS[:1])
    return total


# The kernel puts the node's number before each key.
def _of_node(node: int, path: Path, data: bytes, names: Sequence[bytes]) -> list[int]:
    keys = [b"Node %d %s" % (node, name) for name in names]
    return [*map(_keyed(path, data, keys).required, keys)]


def _keyed(path: Path, data: bytes, keys: Collection[bytes]) -> Keyed:
    return keyed(path, data, keys, b":", b" kB", KIB)


class MeminfoValues(msgspec.Struct, frozen=True, gc=False):
    """The machine's memory, by the kernel's names. None: this kernel has no such row.

    `problem`: why the file is not that of a machine. Then no part is larger than its whole all the same.
    """

    mem_total_bytes: int
    mem_free_bytes: int
    mem_available_bytes: int
    cached_bytes: int | None
    sreclaimable_bytes: int | None
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    hugetlb_bytes: int | None = None  # all huge pages, used or not; since Linux 4.19
    problem: str | None = None
    balloon_bytes: int | None = None  # what drivers gave the hypervisor back, in MemTotal or not; since Linux 6.17
    kernel_bytes: int = 0  # slab that cannot be reclaimed, stacks, page tables and per-CPU memory, of cgroups too

    @property
    def used_bytes(self) -> int:
        """MemTotal − MemAvailable, 0 to MemTotal: what Koordinator calls the node's usage."""
        return max(self.mem_total_bytes - self.mem_available_bytes, 0)


def implausible(values: MeminfoValues) -> str | None:
    """Return what cannot be true of a machine's memory, as of lxcfs in a container; None: nothing.

    >>> implausible(MeminfoValues(4096, 1024, 9216, None, None, None, None))
    "MemAvailable 9.0 KiB > MemTotal 4.0 KiB: this is a container's view"
    """
    total, swap = values.mem_total_bytes, values.swap_total_bytes
    if 0 < total >= max(values.mem_available_bytes, values.mem_free_bytes, values.hugetlb_bytes or 0) and (
        swap is None or (values.swap_free_bytes or 0) <= swap
    ):
        return None  # almost always, and up to a hundred times a second
    if total == 0:
        return "MemTotal is 0: this is a container's view"
    for name, part, of, whole in (
        ("MemAvailable", values.mem_available_bytes, "MemTotal", values.mem_total_bytes),
        ("MemFree", values.mem_free_bytes, "MemTotal", values.mem_total_bytes),
        ("Hugetlb", values.hugetlb_bytes, "MemTotal", values.mem_total_bytes),
        ("SwapFree", values.swap_free_bytes, "SwapTotal", values.swap_total_bytes),
    ):
        if part is not None and whole is not None and part > whole:
            return f"{name} {format_bytes(part)} > {of} {format_bytes(whole)}: this is a container's view"
    return None


def _bounded(values: MeminfoValues, problem: str) -> MeminfoValues:
    total, swap = values.mem_total_bytes, values.swap_total_bytes
    return msgspec.structs.replace(
        values,
        mem_free_bytes=min(values.mem_free_bytes, total),
        mem_available_bytes=min(values.mem_available_bytes, total),
        hugetlb_bytes=None if values.hugetlb_bytes is None else min(values.hugetlb_bytes, total),
        swap_free_bytes=None if values.swap_free_bytes is None else min(values.swap_free_bytes, swap or 0),
        problem=problem,
        kernel_bytes=min(values.kernel_bytes, total),
    )


class Meminfo(ProcFile):
    """Reads /proc/meminfo.

    Not psutil: it opens the file for each reading, and this one is read up to a hundred times a second.
    """

    def __init__(self, path: Path = MEMINFO) -> None:
        """Open the file.

        Raises:  SupportError: there is none.
        """
        super().__init__(path, "node memory")

    def read(self) -> MeminfoValues:
        """Return the rows as they are now.

        Raises:  KernelFileError: MemTotal, MemFree or MemAvailable (since Linux 3.14) is missing or no number of kB.
        Cost:    15 µs, most of it the kernel's.
        """
        found = _keyed(self.path, os.pread(self._fd, _FILE_BYTES, 0), _ROWS)
        total, free, available = map(found.required, _NEEDED)
        cached, slab, swap_total, swap_free, hugetlb, balloon = map(found.values.get, _OPTIONAL)
        kernel = sum([found.values.get(name, 0) for name in _KERNEL])
        values = MeminfoValues(
            total, free, available, cached, slab, swap_total, swap_free, hugetlb, None, balloon, kernel
        )  # fmt: skip
        problem = implausible(values)
        return values if problem is None else _bounded(values, problem)
