"""CPU topology from sysfs: cores, sockets, NUMA nodes, isolated CPUs; read again when a CPU goes online or offline."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from koordebpf.errors import KernelFileError, SupportError
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kernel.io.table import field, text_or_none
from koordebpf.kernel.io.text_file import KeptFile

SYSFS = Path("/sys/devices/system")
# By kernel parameter: isolcpus=, whose tasks the scheduler does not balance, and nohz_full=, which have no tick.
ISOLATING = ("isolated", "nohz_full")
_UNSET = "(null)"  # of nohz_full without the parameter, before Linux 5.14
_FILE_BYTES = 1 << 14  # a list of 8192 CPUs of which every other one is there has 20 KiB; real ones have some ranges


class Cpu(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One CPU that is online, by the kernel's number.

    `core` is the lowest number among the online CPUs of its core, so that it names the core on the whole machine: the
    kernel's core_id starts at 0 on every socket or die. `socket` and `numa_node` are the kernel's own numbers.
    """

    cpu: int
    core: int
    socket: int
    numa_node: int


class CpuTopology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The CPUs that are online, by ascending number, and the numbers of those that are there but offline.

    `isolated`: of those that are online, the ones that the kernel keeps from ordinary tasks (isolcpus, nohz_full).
    """

    online: tuple[Cpu, ...]
    offline: tuple[int, ...] = ()
    isolated: tuple[int, ...] = ()

    @property
    def cpus(self) -> tuple[int, ...]:
        """The numbers of the CPUs that are online."""
        return tuple(each.cpu for each in self.online)


class CpuTopologyFiles(KeptFile):
    """Reads the topology; keeps only the list of online CPUs open.

    Source:  Documentation/admin-guide/cputopology.rst; cpu/online, cpu/present, cpu/isolated, cpu/nohz_full,
             cpu/cpu*/topology, node/node*/cpulist.
    """

    def __init__(self, sysfs: Path = SYSFS) -> None:
        """Open the list of online CPUs.

        Raises:  SupportError: there is none.
        """
        self.path = sysfs / "cpu" / "online"
        self._sysfs = sysfs
        self._seen: bytes | None = None
        self._topology = CpuTopology(())
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SupportError("CPU topology", f"{self.path}: {error.strerror}", "Mount sysfs at /sys") from None

    def read(self) -> CpuTopology:
        """Return the topology; the same object for as long as the same CPUs are online.

        A CPU that is offlined while its files are read is offline.

        Raises:  KernelFileError: garbage, or no CPU is online.
        Cost:    3 µs where nothing changed; 60 µs a CPU where something did.
        """
        text = os.pread(self._fd, _FILE_BYTES, 0)
        if text != self._seen:
            online = parse_cpu_list(field(text), str(self.path))
            self._topology = self._read_all(online)
            # One that went meanwhile may be back under the same list the next time.
            self._seen = text if len(self._topology.online) == len(online) else None
        return self._topology

    def _read_all(self, online: Collection[int]) -> CpuTopology:
        nodes = self._numa_nodes()
        cores: dict[int, int] = {}
        cpus: list[Cpu] = []
        for cpu in sorted(online):
            topology = self._sysfs / "cpu" / f"cpu{cpu}" / "topology"
            if cpu not in cores:
                siblings = self._siblings(topology)
                cores |= dict.fromkeys(siblings or (cpu,), min(siblings or (cpu,)))
            socket = _number(topology / "physical_package_id")
            if socket is None:
                continue
            # -1: the firmware does not tell (arm64 and riscv without PPTT); such a machine counts as one socket.
            cpus.append(Cpu(cpu, cores[cpu], max(socket, 0), nodes.get(cpu, 0)))
        if not cpus:
            raise KernelFileError(str(self.path), "", "must name at least one CPU that is online")
        here = {each.cpu for each in cpus}
        present = cpus_or_none(self._sysfs / "cpu" / "present") or online
        offline = tuple(sorted(cpu for cpu in present if cpu not in here))
        isolated = frozenset[int]().union(*isolated_cpus(self._sysfs).values())
        return CpuTopology(tuple(cpus), offline, tuple(sorted(here & isolated)))

    # core_cpus_list since Linux 5.3; thread_siblings_list is the same under its older name and is still there. Both
    # hold the CPUs that are online only.
    def _siblings(self, topology: Path) -> Collection[int]:
        return cpus_or_none(topology / "core_cpus_list") or cpus_or_none(topology / "thread_siblings_list") or ()

    # A kernel without CONFIG_NUMA has no such directory: everything is node 0. A node without CPUs has an empty list.
    def _numa_nodes(self) -> dict[int, int]:
        nodes: dict[int, int] = {}
        for directory in (self._sysfs / "node").glob("node[0-9]*"):
            nodes |= dict.fromkeys(cpus_or_none(directory / "cpulist") or (), int(directory.name.removeprefix("node")))
        return nodes


def isolated_cpus(sysfs: Path = SYSFS) -> dict[str, frozenset[int]]:
    """Return the CPUs of each of `ISOLATING` that keeps some from ordinary tasks, online or not.

    Raises:  KernelFileError: garbage.
    """
    found = {}
    for name in ISOLATING:
        path = sysfs / "cpu" / name
        text = text_or_none(path)
        if text and text != _UNSET:
            found[name] = parse_cpu_list(text, str(path))
    return found


def _number(path: Path) -> int | None:
    if (text := text_or_none(path)) is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise KernelFileError(str(path), text, "must be a whole number") from None


def cpus_or_none(path: Path, *absent: int) -> frozenset[int] | None:
    """Return the CPUs that the file lists; None: there is none.

    Raises:  KernelFileError: no list of CPUs. OSError: as `text_or_none`.
    """
    return None if (text := text_or_none(path, *absent)) is None else parse_cpu_list(text, str(path))
