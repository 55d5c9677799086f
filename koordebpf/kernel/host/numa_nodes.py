"""The NUMA nodes of a machine with their memory and huge pages, from sysfs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kernel.io.table import shown
from koordebpf.kernel.proc.meminfo import numa_total_bytes

_PAGES = re.compile(r"hugepages-(\d+)kB")


class NumaNode(msgspec.Struct, frozen=True, gc=False):
    """One node. `memory_bytes`: all of it, with huge pages; None: its meminfo cannot be read.

    `huge_pages`: (size in bytes, number of pages), by size; without sizes of which there are none.
    """

    node: int
    memory_bytes: int | None
    huge_pages: tuple[tuple[int, int], ...] = ()

    @property
    def huge_bytes(self) -> int:
        """What its huge pages take."""
        return sum(size * count for size, count in self.huge_pages)


def numa_nodes(sysfs: Path = Path("/sys")) -> tuple[NumaNode, ...]:
    """Return the nodes by number, without those that only initiate accesses, as some devices do, and have no memory.

    A kernel without CONFIG_NUMA has none. One whose directory vanishes meanwhile is left out.

    Source:  Documentation/ABI/stable/sysfs-devices-node; drivers/base/node.c, has_generic_initiator (Linux 5.10).
    Raises:  KernelFileError: garbage.
    Cost:    0.2 ms a node.
    """
    root = sysfs / "devices/system/node"
    initiators = _numbers(root / "has_generic_initiator") - _numbers(root / "has_memory")
    found = []
    for directory in root.glob("node[0-9]*"):
        number = int(directory.name.removeprefix("node"))
        if number not in initiators and directory.is_dir():
            memory = _memory_bytes(number, directory / "meminfo")
            found.append(NumaNode(number, memory, _huge_pages(directory / "hugepages")))
    return tuple(sorted(found, key=lambda each: each.node))


def with_all_memory(nodes: tuple[NumaNode, ...], total_bytes: int | None) -> tuple[NumaNode, ...]:
    """Return the nodes with all memory of the machine where one of them has memory; several stay as they are.

    Memory that a hypervisor adds to a running guest is in the machine's MemTotal, and not always in that of its node:
    `totalram_pages` grew, and the zone's `managed_pages` did not (seen on 6.18: 20.7 of 23.5 GiB).

    Source:  mm/show_mem.c, si_meminfo_node.
    """
    having = [each for each in nodes if each.memory_bytes]
    if total_bytes is None or len(having) != 1 or total_bytes <= (having[0].memory_bytes or 0):
        return nodes
    return tuple(
        msgspec.structs.replace(each, memory_bytes=total_bytes) if each.memory_bytes else each for each in nodes
    )


def _memory_bytes(node: int, path: Path) -> int | None:
    try:
        return numa_total_bytes(node, path)
    except OSError:
        return None


def _huge_pages(directory: Path) -> tuple[tuple[int, int], ...]:
    found = []
    for each in directory.glob("hugepages-*kB"):
        match, text = _PAGES.fullmatch(each.name), _text(each / "nr_hugepages")
        if match is None or text is None:
            continue
        if not text.isdecimal():
            raise KernelFileError(str(each / "nr_hugepages"), text, "must be a number of pages")
        if int(text):
            found.append((int(match[1]) << 10, int(text)))
    return tuple(sorted(found))


def _numbers(path: Path) -> frozenset[int]:
    return frozenset() if (text := _text(path)) is None else parse_cpu_list(text, str(path))


def _text(path: Path) -> str | None:
    try:
        return shown(path.read_bytes().strip())
    except OSError:
        return None
