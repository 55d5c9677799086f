"""Machines of any size for tests: their CPUs as values, and as the sysfs tree that the kernel would show of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from koordebpf.kernel.cgroup.files import format_cpu_list
from koordebpf.kernel.proc.cpu_topology import Cpu, CpuTopology

Numbering = Literal["siblings together", "siblings last", "sockets in turn"]


def machine(
    *, sockets: int = 1, nodes: int = 1, cores: int = 1, threads: int = 1, numbering: Numbering = "siblings last"
) -> CpuTopology:
    """Return a machine with `nodes` NUMA nodes a socket and `cores` cores a node, numbered as firmware does it."""
    places = [
        (socket, socket * nodes + node, core, thread)
        for socket in range(sockets)
        for node in range(nodes)
        for core in range(cores)
        for thread in range(threads)
    ]
    match numbering:
        case "siblings last":  # most x86 servers: 0…n/2 are the first threads of all cores
            places.sort(key=lambda place: (place[3], *place[:3]))
        case "sockets in turn":  # some x86 firmware: even CPUs on one socket, odd ones on the other
            places.sort(key=lambda place: (place[3], place[2], place[1], place[0]))
        case "siblings together":  # POWER, most virtual machines
            pass
    first: dict[tuple[int, int, int], int] = {}
    for cpu, place in enumerate(places):
        first.setdefault(place[:3], cpu)
    return CpuTopology(
        tuple(Cpu(cpu, first[place[:3]], place[0], place[1]) for cpu, place in enumerate(places))
    )  # fmt: skip


def without(topology: CpuTopology, offline: Collection[int]) -> CpuTopology:
    """Return the machine after these CPUs went offline: a core is named by the first sibling that is left."""
    left = [each for each in topology.online if each.cpu not in offline]
    names: dict[int, int] = {}
    for each in left:
        names.setdefault(each.core, each.cpu)
    return CpuTopology(
        tuple(Cpu(each.cpu, names[each.core], each.socket, each.numa_node) for each in left),
        tuple(sorted({*topology.offline, *offline})),
    )


def write_sysfs(root: Path, topology: CpuTopology, *, has_numa: bool = True, older: bool = False) -> Path:
    """Write /sys/devices/system of a machine; `older`: before Linux 5.3, which has thread_siblings_list only."""
    cpu_dir, node_dir = root / "cpu", root / "node"
    cpu_dir.mkdir(parents=True, exist_ok=True)
    siblings: dict[int, list[int]] = {}
    numa: dict[int, list[int]] = {}
    for each in topology.online:
        siblings.setdefault(each.core, []).append(each.cpu)
        numa.setdefault(each.numa_node, []).append(each.cpu)
    (cpu_dir / "online").write_text(_line(topology.cpus))
    (cpu_dir / "present").write_text(_line({*topology.cpus, *topology.offline}))
    for each in topology.online:
        directory = cpu_dir / f"cpu{each.cpu}" / "topology"
        directory.mkdir(parents=True, exist_ok=True)
        # core_id restarts on each socket, with gaps: nothing may rely on it.
        (directory / "core_id").write_text(f"{each.core % 7}\n")
        (directory / "physical_package_id").write_text(f"{each.socket}\n")
        (directory / "thread_siblings_list").write_text(_line(siblings[each.core]))
        if not older:
            (directory / "core_cpus_list").write_text(_line(siblings[each.core]))
    for cpu in topology.offline:
        (cpu_dir / f"cpu{cpu}").mkdir(exist_ok=True)  # stays, without topology
        if (gone := cpu_dir / f"cpu{cpu}" / "topology").exists():
            for file in gone.iterdir():
                file.unlink()
            gone.rmdir()
    for node, cpus in numa.items() if has_numa else ():
        (node_dir / f"node{node}").mkdir(parents=True, exist_ok=True)
        (node_dir / f"node{node}" / "cpulist").write_text(_line(cpus))
    return root


def _line(cpus: Iterable[int]) -> str:
    return format_cpu_list(cpus) + "\n"
