"""What batch and mid resources of a node are computed from, and the sums they come to. Amounts are millicpu and bytes.

One node has a hundred pods and a cluster a hundred thousand: their records are small, and unseen by the garbage
collector, for they hold no cycles.
"""

from __future__ import annotations

from typing import Final

import msgspec

# Bands of priority whose pods run on what others leave: they lower neither batch nor, with mid, mid resources.
BATCH_BANDS: Final = frozenset({"koord-batch", "koord-free"})
MID_BANDS: Final = frozenset({"koord-mid", *BATCH_BANDS})


class Term(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One summand; negative: it is taken off. `source` is where its value comes from."""

    name: str
    value: int
    source: str = ""


class Calculation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The amount of one resource: `result` is the sum of `terms`.

    `resource` is its name in node.status.allocatable. `reset`: why the node has none of it; then `result` is None.
    """

    resource: str
    result: int | None
    terms: tuple[Term, ...] = ()
    reset: str = ""


class Sum:
    """Terms as they are added up. A term that is zero changes nothing, and is left out unless `keep`."""

    def __init__(self, resource: str) -> None:
        self.total = 0
        self._resource = resource
        self._terms: list[Term] = []

    def add(self, name: str, value: int, source: str = "", *, keep: bool = False) -> None:
        """Add a summand."""
        if value or keep:
            self._terms.append(Term(name, value, source))
            self.total += value

    def at_least_zero(self) -> None:
        """Raise what is below zero to it."""
        if self.total < 0:
            self.add("raised to zero", -self.total, "there is nothing left")

    def at_most(self, limit: int, source: str) -> None:
        """Cut what is above a limit."""
        if self.total > limit:
            self.add("cut to the limit", limit - self.total, source)

    def calculation(self) -> Calculation:
        """Return the result with its terms."""
        return Calculation(self._resource, self.total, tuple(self._terms))


class CpuMemory(msgspec.Struct, frozen=True, gc=False):
    """An amount of both."""

    cpu_millicpu: int = 0
    memory_bytes: int = 0


NOTHING: Final = CpuMemory()


class PodRequest(msgspec.Struct, frozen=True, gc=False):
    """A pod of the list that is Running or Pending: what it requests.

    `key` is namespace/name. `band` is its class of priority, by default after its QoS class. `zones` are the NUMA nodes
    that the scheduler allocated it, by their numbers; empty: none, all count.
    """

    key: str
    band: str
    is_lse: bool
    cpu_millicpu: int
    memory_bytes: int
    zones: tuple[int, ...] = ()


class PodUse(msgspec.Struct, frozen=True, gc=False):
    """A pod of NodeMetric: what it uses. `band` as reported; "": none."""

    key: str
    band: str
    cpu_millicpu: int
    memory_bytes: int


class HostApplicationUse(msgspec.Struct, frozen=True, gc=False):
    """A host application of NodeMetric. `band` by default after its QoS class; "": it has neither."""

    name: str
    band: str
    cpu_millicpu: int
    memory_bytes: int


class Usage(msgspec.Struct, frozen=True, gc=False):
    """NodeMetric's status.

    `updated_ns`: CLOCK_REALTIME of updateTime; None: it never was. `node` and `prod_reclaimable` None: not reported.
    """

    updated_ns: int | None = None
    node: CpuMemory | None = None
    system: CpuMemory = NOTHING
    pods: tuple[PodUse, ...] = ()
    host_applications: tuple[HostApplicationUse, ...] = ()
    prod_reclaimable: CpuMemory | None = None


class Zone(msgspec.Struct, frozen=True, gc=False):
    """A NUMA node of NodeResourceTopology: what of it is allocatable."""

    name: str
    allocatable: CpuMemory


class NodeFacts(msgspec.Struct, frozen=True, gc=False):
    """A Node, and what others say of it.

    `reserved` is of the annotation reservation, `third_party` what others allocated of its batch resources.
    `normalization_ratio`: of the annotation cpu-normalization-ratio; 1 or less changes nothing.
    `zones`: empty where the topology has none with CPU and memory. `problems` are annotations that cannot be read.
    """

    name: str
    capacity: CpuMemory
    allocatable: CpuMemory
    reserved: CpuMemory = NOTHING
    third_party: CpuMemory = NOTHING
    normalization_ratio: float = 1.0
    zones: tuple[Zone, ...] = ()
    problems: tuple[str, ...] = ()
