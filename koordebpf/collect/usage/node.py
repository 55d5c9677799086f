"""What the whole node uses, and each of its NUMA nodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.scope import NodeScope
from koordebpf.collect.usage.groups import InTurn, UsageGroup
from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.numa_stat import numa_held
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.cpu_topology import SYSFS, CpuTopologyFiles
from koordebpf.kernel.proc.cpu_usage import NodeCpuTime
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.kernel.proc.numa_meminfo import NumaMeminfo
from koordebpf.state.stalls.sums import cgroup_used_bytes
from koordebpf.state.usage.counters import CounterRates

log = logging.getLogger(__name__)

# Why 16: 110 pods are read within seven seconds, at 20 µs each.
_PODS_A_PASS = 16
_WHOLE = -1  # key of all CPUs together; a CPU's is its number


class NodeUse(msgspec.Struct, frozen=True):
    """CPU in cores, memory in bytes; None: not known, as a rate at first. NUMA nodes by number."""

    cpu: float | None = None
    held_bytes: int | None = None
    cached_bytes: int | None = None
    numa_cpu: Mapping[int, float] = {}
    numa_held_bytes: Mapping[int, int] = {}
    numa_rest_bytes: Mapping[int, float] = {}  # less what pods hold there; none: not known


class MachineUse(Closing):
    """Reads /proc/stat, /proc/meminfo and meminfo of the NUMA nodes, whose errors leave out only what they are of.

    Where there is one NUMA node its CPU time is the machine's, and CPUs are not read one by one.
    """

    def __init__(self, proc: Path = Path("/proc"), sysfs: Path = SYSFS) -> None:
        """Open the files.

        Raises:  SupportError: no procfs.
        """
        self.problem = ""  # of the NUMA nodes; "": none
        self._stat = NodeCpuTime(proc / "stat")
        self._meminfo = Meminfo(proc / "meminfo")
        self._numa = NumaMeminfo(sysfs)
        self._topology = CpuTopologyFiles(sysfs) if len(self.numa_nodes) > 1 else None
        self._rates = CounterRates()

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """Their numbers."""
        return self._numa.nodes

    def read(self, t_ns: int) -> NodeUse:
        """Return what is used now; CPU since the call before.

        Raises:  KernelFileError: /proc/stat or /proc/meminfo is garbage.
        """
        memory = self._meminfo.read()
        if self._topology is None:
            rates = self._rates.push(t_ns, {_WHOLE: self._stat.used_ns()})
        else:
            whole, each = self._stat.used_ns_by_cpu()
            self._rates.keep_only([_WHOLE, *each])  # a CPU that was offline begins again
            rates = self._rates.push(t_ns, {_WHOLE: whole, **each})
        cpu = rates.pop(_WHOLE, None)
        numa_cpu, numa_held = self._numa_nodes(cpu, rates)
        return NodeUse(cpu, memory.used_bytes, memory.mem_total_bytes - memory.mem_free_bytes, numa_cpu, numa_held)

    def _numa_nodes(self, cpu: float | None, rates: Mapping[int, float]) -> tuple[dict[int, float], dict[int, int]]:
        try:
            held = self._numa.used_bytes()
            if self._topology is None:
                return ({} if cpu is None else dict.fromkeys(self._numa.nodes, cpu)), held
            by_node: dict[int, float] = {}
            for each in self._topology.read().online:
                if (rate := rates.get(each.cpu)) is not None:
                    by_node[each.numa_node] = by_node.get(each.numa_node, 0.0) + rate
        except (KernelFileError, SupportError, OSError) as error:
            if self.problem != str(error):
                self.problem = str(error)
                log.warning("NUMA nodes are not measured: %s", error)
            return {}, {}
        self.problem = ""
        return by_node, held

    def close(self) -> None:
        """Close every fd."""
        for each in (self._stat, self._meminfo, self._numa, self._topology):
            if each is not None:
                each.close()


class PodsByNuma:
    """What pods hold of each NUMA node's memory, without page cache. Of several nodes, pods are read in turn.

    Args:
        scope: the node.
        nodes: their numbers.
    """

    def __init__(self, scope: NodeScope, nodes: tuple[int, ...]) -> None:
        self._hierarchy = scope.hierarchy
        self._nodes = nodes
        self._paths: dict[int, str] = {}
        self._turn = InTurn(_PODS_A_PASS)
        self._held: dict[int, dict[int, int]] = {}

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Watch the pods among these, and no others."""
        self._paths = {group: its.path for group, its in groups.items() if its.kind == "pod"}
        for group in self._held.keys() - self._paths.keys():
            del self._held[group]

    def read(self, held: Mapping[int, int]) -> dict[int, int] | None:
        """Return it by node; None: not known yet.

        Args:
            held: by cgroup id, which is all that is needed where there is one node.
        """
        if len(self._nodes) == 1:
            return {self._nodes[0]: sum(held.get(group, 0) for group in self._paths)}
        for group in self._turn.next(self._paths):
            self._read(group)
        if self._held.keys() != self._paths.keys():
            return None
        return {node: sum(each.get(node, 0) for each in self._held.values()) for node in self._nodes}

    def _read(self, group: int) -> None:
        hierarchy = self._hierarchy
        try:
            self._held[group] = numa_held(hierarchy.mount_point / self._paths[group], hierarchy.version)
        except (CgroupGone, OSError):
            self._held[group] = {}


class WholeNode(Closing):
    """The machine, or the cgroup that is the node: its CPU is one of the pass's, its memory in the last scan.

    Args:
        scope: the node.
        memory: has the last scan.
    """

    def __init__(self, scope: NodeScope, memory: MemoryCollector) -> None:
        self._root_id = scope.root_id
        self._memory = memory
        self._machine = MachineUse() if scope.kind == "machine" else None
        self._pods = PodsByNuma(scope, self._machine.numa_nodes) if self._machine is not None else None

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Watch the pods among these."""
        if self._pods is not None:
            self._pods.watch(groups)

    def read(self, t_ns: int, cpu: Mapping[int, float], held: Mapping[int, int]) -> NodeUse:
        """Return what is used now.

        Args:
            t_ns: CLOCK_MONOTONIC.
            cpu: by cgroup id, in cores.
            held: by cgroup id, memory without page cache.
        Raises:  KernelFileError: /proc/stat or /proc/meminfo is garbage.
        """
        if self._machine is None or self._pods is None:
            return self._cgroup(cpu.get(self._root_id))
        use, pods = self._machine.read(t_ns), self._pods.read(held)
        if pods is None:
            return use
        rest = {node: whole - pods.get(node, 0) for node, whole in use.numa_held_bytes.items()}
        return replace(use, numa_rest_bytes=rest)

    def _cgroup(self, cpu: float | None) -> NodeUse:
        _, sums = self._memory.sums
        memory = None if sums is None else sums.all(self._root_id)
        if memory is None:
            return NodeUse(cpu)
        return NodeUse(cpu, cgroup_used_bytes(memory), memory.usage_bytes)

    def close(self) -> None:
        """Close every fd."""
        if self._machine is not None:
            self._machine.close()
