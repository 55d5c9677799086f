"""The zones of a NodeResourceTopology: what each NUMA node has, and how it is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Node
from koordebpf.quantity import cpu_text, memory_text, quantity_bytes, quantity_millicpu
from koordebpf.state.node_info import NodeInfo
from koordebpf.units import GIB, MIB

NUMA_RESERVATION_LABEL = "node.koordinator.sh/enable-numa-reservation"
HUGE_PAGES: Mapping[int, str] = {2 * MIB: "hugepages-2Mi", GIB: "hugepages-1Gi"}
MANAGED = ("cpu", "memory", *HUGE_PAGES.values())
_MILLI = 1000


class ZoneResource(msgspec.Struct, frozen=True):
    """One resource of a zone, as v1alpha1.ResourceInfo without what is available: that is what is allocatable."""

    name: str
    capacity: str
    allocatable: str


class Zone(msgspec.Struct, frozen=True):
    """One NUMA node, as v1alpha1.Zone of type Node."""

    name: str
    resources: tuple[ZoneResource, ...]


def zones_of(info: NodeInfo, node: Node) -> tuple[Zone, ...]:
    """Return one zone a NUMA node, by name; of a kernel without NUMA, none is known but that of its CPUs.

    With the label of reservation by NUMA node, what kubelet keeps from the node is taken from its zones in equal parts.

    Raises:  ConfigError: a quantity of the Node's status is none.
    """
    labels = node.metadata.labels or {}
    numbers = sorted({each.node for each in info.numa} | {each.numa_node for each in info.processors})
    cpu_kept = memory_kept = 0
    if labels.get(NUMA_RESERVATION_LABEL) == "true":
        # Rounded up: together they are at least what the node keeps.
        cpu_kept = -(-_kept(node, "cpu") // len(numbers))
        memory_kept = -(-_kept(node, "memory") // len(numbers))
    return tuple(sorted((_zone(info, each, cpu_kept, memory_kept) for each in numbers), key=lambda each: each.name))


def _zone(info: NodeInfo, number: int, cpu_kept: int, memory_kept: int) -> Zone:
    numa = next((each for each in info.numa if each.node == number), None)
    millicpu = len(info.of_node(number)) * _MILLI
    pages = dict(numa.huge_pages) if numa is not None else {}
    huge = {name: pages.get(size, 0) * size for size, name in HUGE_PAGES.items()}
    # Pages of other sizes are no resource of Kubernetes', and their memory is no pod's either.
    memory = max((numa.memory_bytes or 0) - numa.huge_bytes, 0) if numa is not None else 0
    resources = [
        ZoneResource("cpu", cpu_text(millicpu), cpu_text(max(millicpu - cpu_kept, 0))),
        ZoneResource("memory", memory_text(memory), memory_text(max(memory - memory_kept, 0))),
        *(ZoneResource(name, memory_text(size), memory_text(size)) for name, size in huge.items()),
    ]
    return Zone(f"node-{number}", tuple(sorted(resources, key=lambda each: each.name)))


# Of cpu in millicpu, of memory in bytes; 0 where capacity or allocatable is not known.
def _kept(node: Node, name: str) -> int:
    capacity, allocatable = node.status.capacity or {}, node.status.allocatable or {}
    if name not in capacity or name not in allocatable:
        return 0
    amount = quantity_millicpu if name == "cpu" else quantity_bytes
    of = (amount(each[name], f"node.status.{name}") for each in (capacity, allocatable))
    whole, left = of
    return max(whole - left, 0)


def same_amount(name: str, one: object, other: object) -> bool:
    """Tell whether two quantities are the same; what is none is equal to nothing."""
    amount = quantity_millicpu if name == "cpu" else quantity_bytes
    try:
        return amount(one) == amount(other)  # type: ignore[arg-type]  # checked by it
    except ConfigError:
        return False
