"""What was measured of the node, its pods and cgroups in one sampling: values, from the kernel alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from koordebpf.state.cpu.measured import CpuMeasured
from koordebpf.units import MIB

_Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]  # checked where a frame is read, free everywhere else
_MUCH_BYTES = 64 * MIB
OTHERS = "others"  # the path of cgroups outside of pods that are summed up
PartyKind = Literal["pod", "cgroup", "own limit", "unattributed", "others"]


class StallSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The share of the last 10 s in which all tasks of a latency-sensitive pod waited for the node's memory.

    `ratio` is that of the pod for which most is known for certain, `pod` its namespace/name. `at_most_ratio` is the
    most that it can be for any of them, `at_most_pod` that pod. They differ where the kernel does not say when all
    tasks wait, or where a limit of the pod's own may be the reason. `is_whole`: every wait for memory is timed; else
    direct reclaim and compaction alone.
    """

    at_ns: Annotated[int, msgspec.Meta(ge=0)]
    ratio: _Ratio = 0.0
    at_most_ratio: _Ratio = 0.0
    pod: str = ""  # none: no latency-sensitive pod stalls
    at_most_pod: str = ""
    is_whole: bool = True


class MemoryParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory of a cgroup with its children. Bytes.

    `usage_bytes` is memory.current (v1 memory.usage_in_bytes); the LRU sizes are summed over subtree and NUMA nodes.
    `shmem_bytes` and `slab_reclaimable_bytes` None: not measured, or this kernel does not tell.
    `kernel_bytes` is what the cgroup is charged beside page cache and process memory and releases when it ends:
    socket buffers, pipes, page tables, stacks, per-CPU memory, slab that cannot be reclaimed. None: not measured.
    `swap_bytes` is what it has in swap, on whatever device. `elsewhere_bytes` is what cgroups outside its own hold for
    it, as a virtual machine's in the sandbox's cgroup: without page cache and reclaimable slab.
    """

    usage_bytes: NotNegative
    inactive_anon_bytes: NotNegative
    active_anon_bytes: NotNegative
    inactive_file_bytes: NotNegative
    active_file_bytes: NotNegative
    unevictable_bytes: NotNegative
    shmem_bytes: NotNegative | None = None
    slab_reclaimable_bytes: NotNegative | None = None
    kernel_bytes: NotNegative | None = None
    swap_bytes: NotNegative = 0
    elsewhere_bytes: NotNegative = 0

    @property
    def held_bytes(self) -> int:
        """What is not available to others while it lives: usage − file LRU − reclaimable slab + elsewhere."""
        # Spelled out: a property of a property takes twice as long, and this is asked of every pod of every feature.
        return (
            self.inactive_anon_bytes
            + self.active_anon_bytes
            + self.unevictable_bytes
            + (self.kernel_bytes or 0)
            + self.elsewhere_bytes
        )

    @property
    def koordinator_used_bytes(self) -> int:
        """What Koordinator calls a pod's memory: inactive_anon + active_anon + unevictable."""
        return self.inactive_anon_bytes + self.active_anon_bytes + self.unevictable_bytes


def is_mostly_kernel(kernel_bytes: int | None, of_bytes: int | None) -> bool:
    """Tell whether the kernel's memory is the larger part; of small pods it often is, and that says nothing."""
    return kernel_bytes is not None and kernel_bytes >= _MUCH_BYTES and 2 * kernel_bytes > (of_bytes or 0)


class StallParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reclaim stalls of a cgroup with its children in the window `window_ns`, by whose shortage it was. Nanoseconds."""

    window_ns: NotNegative
    global_ns: NotNegative
    limit_ns: NotNegative
    global_count: NotNegative = 0
    limit_count: NotNegative = 0
    compaction_ns: NotNegative = 0
    other_global_ns: NotNegative = 0  # refault, swap-in, …, as far as the kernel lets them be timed
    other_limit_ns: NotNegative = 0

    @property
    def total_ns(self) -> int:
        """All of it; the parts do not overlap."""
        return self.global_ns + self.limit_ns + self.compaction_ns + self.other_global_ns + self.other_limit_ns


class PsiLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a memory.pressure file: percents of the averages and the sum in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: NotNegative


class StallShares(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of time in which a cgroup with its children stalled for memory, as a memory.pressure file shows it.

    `derived`: worked out from stall records, because no such file is here. `full` None: it cannot be known then.
    `some_at_most`: only bounds are known, the true `some` lies between `some` and this.
    """

    some: PsiLine
    full: PsiLine | None
    derived: bool
    some_at_most: PsiLine | None = None


class TimeTo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In how long something will be full if the trend continues. Nanoseconds from the measurement; 0: it is.

    `low_ns` is as fast as it grew lately, `high_ns` as slowly; None: it also stood still, so it may never be.
    """

    low_ns: NotNegative
    point_ns: NotNegative
    high_ns: NotNegative | None


class NodeForecast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the node's use reaches each mark. None: it does not grow, or there is no such mark."""

    lower: TimeTo | None = None  # where an eviction ends
    threshold: TimeTo | None = None  # where it begins
    oom: TimeTo | None = None  # nothing is left


class Party(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who stalled, or what it is charged to: a pod, one of its containers, or a cgroup outside all pods.

    `own limit`: the victim's, or its pod's. `unattributed`: no party was seen to grow. `others`: the rest, summed up.
    `name` is namespace/pod, the uid of a pod that no source knows, or the cgroup's path.
    """

    id: str
    kind: PartyKind
    name: str
    container: str | None = None
    uid: str | None = None

    @property
    def label(self) -> str:
        """Name and container, for people."""
        return f"{self.name}/{self.container}" if self.container else self.name


class LedgerRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `victim` stalled on account of `cause` within the ledger's window."""

    victim: Party
    cause: Party
    ns: NotNegative
    since_ns: NotNegative  # begin of the uninterrupted charge that the last one belongs to; may lie before the window
    last_ns: NotNegative  # end of the last one


class LedgerView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who stalled and who caused it, within `window_ns`. The rows' `ns` sum to `total_ns`.

    The largest comes first; those that are too many are one row at the end.
    """

    window_ns: NotNegative
    total_ns: NotNegative
    unattributed_ns: NotNegative
    rows: tuple[LedgerRow, ...] = ()


class PodMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one pod. Each part None: not measured.

    `forecast`: until it, or the container of it that is first, is full of what cannot be reclaimed and is killed for
    its own limit. None: no limit, no growth, or not among the soonest.
    """

    uid: str
    cgroup_id: int | None = None
    memory: MemoryParts | None = None
    growth_bytes_per_s: float | None = None
    stall: StallParts | None = None
    shares: StallShares | None = None  # None: it did not stall
    forecast: TimeTo | None = None


class StrayMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod-level cgroup without a known pod, as after a deletion by force; `uid` is what its path says."""

    cgroup_id: int
    path: str
    memory: MemoryParts | None = None
    uid: str | None = None


class OutsideMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a cgroup outside all pods holds with those below it, without page cache and reclaimable slab.

    `path` is relative to the node. "": the node's own processes, which are in no cgroup below it. `kernel_bytes` are
    the kernel's for it, and in `held_bytes`.
    """

    path: str
    held_bytes: NotNegative
    kernel_bytes: NotNegative = 0


class UnchargedMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Memory of the machine that is in use and charged to no cgroup, by what holds it. Bytes.

    `zram_bytes` are held for `zram_stored_bytes` of swap; `swapped_bytes` is all that is in swap, on whatever device.
    `arc_bytes`: of ZFS' cache what is above its minimum, which it releases by itself. `kernel_bytes`: slab
    that cannot be reclaimed, stacks, page tables and per-CPU memory, of cgroups too. 0: there is none of it here.
    """

    zram_bytes: NotNegative = 0
    zram_stored_bytes: NotNegative = 0
    swapped_bytes: NotNegative = 0
    arc_bytes: NotNegative = 0
    hugetlb_bytes: NotNegative = 0
    kernel_bytes: NotNegative = 0
    balloon_bytes: NotNegative = 0


class NodeMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of the node. Bytes.

    `scope` machine: `total_bytes` is MemTotal and `used_bytes` MemTotal − MemAvailable (/proc/meminfo).
    `scope` cgroup:  `total_bytes` is the cgroup's limit and `used_bytes` its usage − inactive_file − active_file −
    slab_reclaimable, where the kernel tells the last (cgroup v1 does not: it counts as used).
    `uncharged` None: not measured, as of a cgroup.
    """

    scope: Literal["machine", "cgroup"]
    total_bytes: NotNegative
    used_bytes: NotNegative | None  # None: not known; an agent always knows
    growth_bytes_per_s: float | None = None
    memory: MemoryParts | None = None  # cgroup scope: the parts behind used_bytes
    psi_some: PsiLine | None = None
    psi_full: PsiLine | None = None
    stall: StallParts | None = None
    shares: StallShares | None = None  # derived, where there is no pressure file; else see psi_some, psi_full
    forecast: NodeForecast | None = None
    uncharged: UnchargedMemory | None = None

    @property
    def known_used_bytes(self) -> int:
        """`used_bytes` of a node that was measured, as an agent's always is.

        Raises:  ValueError: it is not known.
        """
        return known_bytes(self.used_bytes)


class MeasuredParts(dict[str, Any]):
    """What was measured for single strategies, by `policy.strategy.Strategy.part`.

    A type of its own, since what is decoded as JSON becomes values of the strategies' types: `decision.frames`.
    """


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sampling of the node: everything in it was read after `since_ns`.

    `outside`: the cgroups outside pods that hold most, read up to 0.2 s earlier; the last one, with the path `others`,
    is the rest. None: not measured. `parts`: of a strategy that is left out nothing was measured.
    """

    now_ns: NotNegative  # CLOCK_MONOTONIC at the end of the reading
    since_ns: NotNegative  # … at its begin
    node: NodeMeasure
    pods: tuple[PodMeasure, ...] = ()
    strays: tuple[StrayMeasure, ...] = ()
    ledger: LedgerView | None = None
    cpu: CpuMeasured | None = None  # None: not needed
    stall_window: tuple[StallSample, ...] = ()  # the newest last; none: the stalls of pods are not timed
    outside: tuple[OutsideMeasure, ...] | None = None
    parts: MeasuredParts = msgspec.field(default_factory=MeasuredParts)

    def with_part(self, name: str, part: Any) -> Measured:
        """Return it with what was measured for one strategy more; None: nothing was."""
        return self if part is None else msgspec.structs.replace(self, parts=MeasuredParts({**self.parts, name: part}))


def known_bytes(used_bytes: int | None) -> int:
    """Return the usage of a node that was measured.

    Raises:  ValueError: it is not known.
    """
    if used_bytes is None:
        raise ValueError("the node's memory usage is not known")
    return used_bytes
