"""`NodeView`: all that a decision may look at, one immutable value per tick; and `Frame`, its replayable source.

A frame holds Kubernetes' own objects and beside them what was measured. `koordebpf.state.build` turns it into a view;
the agent, `plan` and later `replay` go the same way.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from koordebpf.kube.objects import Node, Pod
from koordebpf.slo.strategy import ResourceThresholdStrategy

NotNegative = Annotated[int, msgspec.Meta(ge=0)]  # checked where a frame is read, free everywhere else


class MemoryParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory of a cgroup with its children. Bytes.

    `usage_bytes` is memory.current (v1 memory.usage_in_bytes); the LRU sizes are summed over subtree and NUMA nodes.
    `shmem_bytes` and `slab_reclaimable_bytes` None: not measured, or this kernel does not tell.
    """

    usage_bytes: NotNegative
    inactive_anon_bytes: NotNegative
    active_anon_bytes: NotNegative
    inactive_file_bytes: NotNegative
    active_file_bytes: NotNegative
    unevictable_bytes: NotNegative
    shmem_bytes: NotNegative | None = None
    slab_reclaimable_bytes: NotNegative | None = None

    @property
    def koordinator_used_bytes(self) -> int:
        """What Koordinator calls a pod's memory: inactive_anon + active_anon + unevictable."""
        return self.inactive_anon_bytes + self.active_anon_bytes + self.unevictable_bytes


class StallParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reclaim stalls of a cgroup with its children in the window `window_ns`, by whose shortage it was. Nanoseconds."""

    window_ns: NotNegative
    global_ns: NotNegative
    limit_ns: NotNegative
    global_count: NotNegative = 0
    limit_count: NotNegative = 0


class PodMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of one pod. Each part None: not measured."""

    uid: str
    cgroup_id: int | None = None
    memory: MemoryParts | None = None
    growth_bytes_per_s: float | None = None
    stall: StallParts | None = None


class StrayMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod-level cgroup without a known pod, as after a deletion by force; `uid` is what its path says."""

    cgroup_id: int
    path: str
    memory: MemoryParts | None = None
    uid: str | None = None


class PsiLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a memory.pressure file: percents of the averages and the sum in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: NotNegative


class NodeMeasure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured of the node. Bytes.

    `scope` machine: `total_bytes` is MemTotal and `used_bytes` MemTotal − MemAvailable (/proc/meminfo).
    `scope` cgroup:  `total_bytes` is the cgroup's limit and `used_bytes` its usage − inactive_file − active_file −
    slab_reclaimable, where the kernel tells the last (cgroup v1 does not: it counts as used).
    """

    scope: Literal["machine", "cgroup"]
    total_bytes: NotNegative
    used_bytes: NotNegative
    growth_bytes_per_s: float | None = None
    memory: MemoryParts | None = None  # cgroup scope: the parts behind used_bytes
    psi_some: PsiLine | None = None
    psi_full: PsiLine | None = None
    stall: StallParts | None = None


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sampling of the node: everything in it was read after `since_ns`."""

    now_ns: NotNegative  # CLOCK_MONOTONIC at the end of the reading
    since_ns: NotNegative  # … at its begin
    node: NodeMeasure
    pods: tuple[PodMeasure, ...] = ()
    strays: tuple[StrayMeasure, ...] = ()


class PendingRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod that was told to go and has not given its memory back yet."""

    uid: str
    since_ns: NotNegative
    credit_bytes: NotNegative  # at the decision


class RefusedEviction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod whose eviction the API server refused (a PodDisruptionBudget, RBAC): not asked before `retry_at_ns`."""

    uid: str
    retry_at_ns: int | None  # None: never, until the pod changes
    why: str


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything one decision rests on; what `koordebpf plan` reads.

    Kubernetes-native: `node`, `pods`, and `nodeSLO` (the object) or `sloControllerConfig` (the ConfigMap's data).
    `executor` is how an eviction would be carried out, which decides what memory comes back.
    """

    schema: Literal["koordebpf.frame/v1"]
    measured: Measured
    pods: tuple[Pod, ...] = ()
    node: Node | None = None
    nodeSLO: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # msgspec cannot decode `Raw | None`
    sloControllerConfig: dict[str, str] | None = None
    featureGates: dict[str, bool] = {}
    executor: Literal["api", "cgroup"] = "api"
    pending: tuple[PendingRelease, ...] = ()
    refused: tuple[RefusedEviction, ...] = ()
    lastEvictNs: NotNegative | None = None


class PodView(msgspec.Struct, frozen=True):
    """One pod as the decision sees it: its identity and rank from Kubernetes, its memory from the kernel."""

    uid: str
    namespace: str
    name: str
    phase: str
    is_terminating: bool
    kube_qos: str
    koord_qos: str  # the raw label koordinator.sh/qosClass; "" where absent or unknown
    priority: int | None  # spec.priority
    eviction_policy: str | None  # annotation koordinator.sh/eviction-policy, as written
    keeps_tmpfs: bool  # has a tmpfs that outlives its eviction
    koord_qos_label: str | None = None  # the label as written
    is_mirror: bool = False  # the API's copy of a static pod: evicting it leaves the pod running
    cgroup_id: int | None = None
    memory: MemoryParts | None = None
    growth_bytes_per_s: float | None = None
    stall: StallParts | None = None

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"


class NodeView(msgspec.Struct, frozen=True):
    """The node at `now_ns`."""

    now_ns: int
    capacity_bytes: int
    used_bytes: int
    pods: tuple[PodView, ...]
    strategy: ResourceThresholdStrategy | None  # merged and validated; None: no source has told
    feature_gates: dict[str, bool]
    measure: NodeMeasure
    executor: Literal["api", "cgroup"] = "api"
    pending: tuple[PendingRelease, ...] = ()
    refused: tuple[RefusedEviction, ...] = ()
    last_evict_ns: int | None = None
    strays: tuple[StrayMeasure, ...] = ()
