"""What the whole node uses, and each of its NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.errors import KernelFileError, SupportError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.cpu_topology import CpuTopologyFiles
from koordebpf.kernel.proc.cpu_usage import NodeCpuTime
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.kernel.proc.numa_meminfo import NumaMeminfo
from koordebpf.state.stalls.sums import ScanSums, cgroup_used_bytes
from koordebpf.state.usage.counters import CounterRates

_WHOLE = -1  # key of all CPUs together; a CPU's is its number


class NodeUse(msgspec.Struct, frozen=True):
    """CPU in cores, memory in bytes; None: not known, as a rate at first. NUMA nodes by number."""

    cpu: float | None = None
    held_bytes: int | None = None
    cached_bytes: int | None = None
    numa_cpu: Mapping[int, float] = {}
    numa_held_bytes: Mapping[int, int] = {}


class MachineUse(Closing):
    """Reads /proc/stat, /proc/meminfo and meminfo of the NUMA nodes, whose errors leave out only what they are of.

    Where there is one NUMA node its CPU time is the machine's, and CPUs are not read one by one.
    """

    def __init__(self) -> None:
        """Open the files.

        Raises:  SupportError: no procfs.
        """
        self.problem = ""
        self._stat = NodeCpuTime()
        self._meminfo = Meminfo()
        self._numa: NumaMeminfo | None = NumaMeminfo()
        self._topology: CpuTopologyFiles | None = None
        if len(self._numa.nodes) > 1:
            self._topology = CpuTopologyFiles()
        self._rates = CounterRates()

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
        assert self._numa is not None  # not closed
        try:
            held = self._numa.used_bytes()
            if self._topology is None:
                return ({} if cpu is None else dict.fromkeys(self._numa.nodes, cpu)), held
            by_node: dict[int, float] = {}
            for each in self._topology.read().online:
                if (rate := rates.get(each.cpu)) is not None:
                    by_node[each.numa_node] = by_node.get(each.numa_node, 0.0) + rate
        except (KernelFileError, SupportError, OSError) as error:
            self.problem = str(error)
            return {}, {}
        self.problem = ""
        return by_node, held

    def close(self) -> None:
        """Close every fd."""
        for each in (self._stat, self._meminfo, self._numa, self._topology):
            if each is not None:
                each.close()


def cgroup_use(sums: ScanSums | None, root_id: int, cpu: float | None) -> NodeUse:
    """Return what a node uses that is a cgroup, out of the last scan; its CPU is one of the pass's."""
    memory = None if sums is None else sums.all(root_id)
    if memory is None:
        return NodeUse(cpu)
    return NodeUse(cpu, cgroup_used_bytes(memory), memory.usage_bytes)
