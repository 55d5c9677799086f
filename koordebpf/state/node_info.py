"""What a node is made of, as one value: its CPUs, their model, its NUMA nodes. Pure."""

from __future__ import annotations

import msgspec

from koordebpf.kernel.host.numa_nodes import NumaNode
from koordebpf.kernel.host.processors import CpuModel, Processor
from koordebpf.kernel.proc.cpu_topology import Cpu

__all__ = ["CpuModel", "NodeInfo", "NumaNode", "Processor"]


class NodeInfo(msgspec.Struct, frozen=True):
    """One node. `numa`: by number; none: the kernel knows no NUMA, and everything is node 0."""

    processors: tuple[Processor, ...]
    numa: tuple[NumaNode, ...] = ()
    model: CpuModel = CpuModel()

    @property
    def cpus(self) -> tuple[Cpu, ...]:
        """The CPUs by number, as share pools take them."""
        return tuple(
            Cpu(each.cpu, each.core, each.socket, each.numa_node)
            for each in sorted(self.processors, key=lambda each: each.cpu)
        )

    def of_node(self, node: int) -> tuple[int, ...]:
        """Return the CPUs of a NUMA node, ascending."""
        return tuple(sorted(each.cpu for each in self.processors if each.numa_node == node))
