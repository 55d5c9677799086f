"""The CPUs of a node in every detail that a scheduler asks for, from sysfs: cores, sockets, caches, model.

Numbers are those of lscpu(1), which koordlet runs: cores and sockets are counted in the order of their lowest CPU, NUMA
nodes and caches by the kernel's own ids.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from pathlib import Path

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kernel.io.table import field, shown, text_or_none
from koordebpf.kernel.proc.cpu_topology import cpus_or_none

SYSFS = Path("/sys")
PROC = Path("/proc")
_ABSENT = (errno.ENOTDIR, errno.EACCES, errno.EINVAL)
_TRIES = 3  # Why: a CPU that goes offline while its files are read; the next look finds one list


class Processor(msgspec.Struct, frozen=True, gc=False):
    """One CPU that is online. `l1` and `l3` are ids of caches; None: it has none, as in some virtual machines."""

    cpu: int
    core: int
    socket: int
    numa_node: int
    l1: int | None = None
    l3: int | None = None


class CpuModel(msgspec.Struct, frozen=True):
    """What the CPUs are and how they run; what cannot be read is empty or off, as in koordlet.

    `has_smt`: more than one thread of a core runs. `has_turbo`: intel_pstate lets it. `l3_mask`: resctrl's cbm_mask.
    """

    model: str = ""
    vendor: str = ""
    has_smt: bool = False
    has_turbo: bool = False
    l3_mask: str = ""


class ProcessorFiles:
    """Reads the CPUs again where others are online than at the last look.

    Source:  Documentation/ABI/stable/sysfs-devices-system-cpu, Documentation/admin-guide/cputopology.rst.
    """

    def __init__(self, sysfs: Path = SYSFS) -> None:
        """Remember where they are."""
        self._root = sysfs / "devices/system"
        self._online = ""
        self._processors: tuple[Processor, ...] = ()

    def read(self) -> tuple[Processor, ...]:
        """Return those that are online, by node, socket, core and number.

        Raises:  KernelFileError: garbage, no CPU is online, or others were at each of three looks. OSError: no sysfs.
        Cost:    20 µs where nothing changed; 0.4 ms a CPU where something did.
        """
        path = self._root / "cpu/online"
        for _ in range(_TRIES):
            online = field(path.read_bytes().strip())
            if online == self._online and self._processors:
                return self._processors
            found = self._read_all(parse_cpu_list(online, str(path)))
            if found is not None and field(path.read_bytes().strip()) == online:
                self._online, self._processors = online, found
                return found
        raise KernelFileError(
            str(path), online, "must name CPUs whose topology can be read, and the same ones meanwhile"
        )

    # None: one of them is offline meanwhile.
    def _read_all(self, online: Collection[int]) -> tuple[Processor, ...] | None:
        if not online:
            raise KernelFileError(str(self._root / "cpu/online"), "", "must name at least one CPU that is online")
        nodes = self._nodes()
        cores: dict[frozenset[int], int] = {}
        sockets: dict[frozenset[int], int] = {}
        caches: dict[tuple[int, frozenset[int]], int] = {}
        found = []
        for cpu in sorted(online):
            here = self._root / f"cpu/cpu{cpu}"
            core, socket = _siblings(here / "topology", "core_cpus_list", "thread_siblings_list"), None
            if core is not None:
                socket = _siblings(here / "topology", "package_cpus_list", "core_siblings_list")
            if core is None or socket is None:
                return None
            ids = _caches(here / "cache", caches)
            found.append(
                Processor(
                    cpu=cpu,
                    core=cores.setdefault(core, len(cores)),
                    socket=sockets.setdefault(socket, len(sockets)),
                    numa_node=nodes.get(cpu, 0),
                    l1=ids.get(1),
                    l3=ids.get(3),
                )
            )
        return tuple(sorted(found, key=lambda each: (each.numa_node, each.socket, each.core, each.cpu)))

    # A kernel without CONFIG_NUMA has no such directories: everything is node 0.
    def _nodes(self) -> dict[int, int]:
        nodes: dict[int, int] = {}
        for directory in (self._root / "node").glob("node[0-9]*"):
            if (cpus := _list(directory / "cpulist")) is not None:
                nodes |= dict.fromkeys(cpus, int(directory.name.removeprefix("node")))
        return nodes


def cpu_model(sysfs: Path = SYSFS, proc: Path = PROC) -> CpuModel:
    """Return what the CPUs are.

    Cost:    0.1 ms a CPU: /proc/cpuinfo is printed as a whole.
    """
    cpus = sysfs / "devices/system/cpu"
    named = _first_processor(proc / "cpuinfo")
    return CpuModel(
        model=named.get("model name", ""),
        vendor=named.get("vendor_id", ""),
        has_smt=_text(cpus / "smt/active") == "1",
        has_turbo=_text(cpus / "intel_pstate/no_turbo") == "0",
        l3_mask=_text(sysfs / "fs/resctrl/info/L3/cbm_mask") or "",
    )


_CPUINFO_ROWS = {b"model name": "model name", b"vendor_id": "vendor_id"}


# Those rows of the processor that comes first.
def _first_processor(path: Path) -> dict[str, str]:
    fields: dict[str, str] = {}
    try:
        table = path.read_bytes()
    except OSError:
        return fields
    for row in table.split(b"\n"):
        name, colon, value = row.partition(b":")
        if colon and (key := name.rstrip(b"\t")) in _CPUINFO_ROWS:
            fields.setdefault(_CPUINFO_ROWS[key], shown(value.strip()))
            if len(fields) == len(_CPUINFO_ROWS):
                break
    return fields


# core_cpus_list and package_cpus_list since Linux 5.3, under their older names before; those that are online only. A
# machine that does not tell has one thread a core and, as a whole, one socket.
def _siblings(topology: Path, name: str, older: str) -> frozenset[int] | None:
    found = _list(topology / name)
    return found if found is not None else _list(topology / older)


# By level; of the first level the cache of data. Without ids, which some architectures lack, in the order seen.
def _caches(cache: Path, seen: dict[tuple[int, frozenset[int]], int]) -> dict[int, int]:
    ids: dict[int, int] = {}
    for index in sorted(cache.glob("index[0-9]*")):
        level, kind, shared = _text(index / "level"), _text(index / "type"), _list(index / "shared_cpu_list")
        if level is None or not level.isdecimal() or kind == "Instruction":
            continue
        number = int(level)
        given = _text(index / "id")
        if given is not None and given.isdecimal():
            ids[number] = int(given)
        elif shared is not None:
            of_level = sum(1 for each, _ in seen if each == number)
            ids[number] = seen.setdefault((number, shared), of_level)
    return ids


def _list(path: Path) -> frozenset[int] | None:
    return cpus_or_none(path, *_ABSENT)


def _text(path: Path) -> str | None:
    return text_or_none(path, *_ABSENT)
