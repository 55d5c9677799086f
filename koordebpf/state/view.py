"""`NodeView`: all that a decision may look at, one immutable value per tick; and `Frame`, its replayable source.

A frame holds Kubernetes' own objects and beside them what was measured. `koordebpf.state.build` turns it into a view;
the agent, `plan` and later `replay` go the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from koordebpf.kube.cache.objects import Namespace, Node, NodeResourceTopology, Pod, PodDisruptionBudget
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.cpu.measured import CpuView
from koordebpf.state.measured import (
    Measured,
    MemoryParts,
    NodeForecast,
    NotNegative,
    StallParts,
    StallShares,
    TimeTo,
    known_bytes,
)
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.requests import PodTerms
from koordebpf.units import NS_PER_S

ExecutorName = Literal["api", "cri", "cgroup"]  # by an Eviction, by the container runtime, by a kill
KillerName = Literal["api", "delete", "cri", "cgroup"]  # of one pod: also by a deletion through the API server
Labels = tuple[tuple[str, str], ...]  # of one object, sorted by key


Problem = Literal["failed", "gone", "no_process", "memory_stays"]


class PendingRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pod that was evicted and has not released its memory yet.

    `due_ns`: its processes are gone, as far as the executor knows, so its memory has to be back by then. `failed_ns`:
    since then its eviction counts as one that brought nothing, and `problem` and `why` say what became of it.
    """

    uid: str
    since_ns: NotNegative
    credit_bytes: NotNegative  # at the decision
    due_ns: NotNegative | None = None
    failed_ns: NotNegative | None = None
    problem: Problem | None = None
    why: str = ""


class RefusedEviction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pod whose eviction the API server refused (a PodDisruptionBudget, RBAC): not asked before `retry_at_ns`.

    `unanswered_ns`  when it was asked first of those times in a row that it gave no answer, so that the eviction may
                     have been done; None: it answered.
    """

    uid: str
    retry_at_ns: int | None  # None: never, until the pod changes
    why: str
    unanswered_ns: int | None = None


class RecurringEviction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod of a DaemonSet that was evicted for memory in a shortage that lasts: another one takes its place here.

    `workload` as PodTerms has it. `since_ns`: of the first eviction of the shortage. `released_bytes`: what it gave.
    """

    uid: str
    workload: str
    since_ns: NotNegative
    released_bytes: int


MINUTE_NS = 60 * NS_PER_S  # for which an eviction counts in the budgets


class PastEviction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One eviction of the last minute, as the budgets count them."""

    at_ns: NotNegative
    uid: str
    namespace: str
    workload: str | None = None  # as PodTerms has it


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything one decision rests on; what `koordebpf plan` reads.

    Kubernetes-native: `node`, `pods`, and `nodeSLO` (the object) or `sloControllerConfig` (the ConfigMap's data).
    `measured.node.used_bytes` null says that the node's usage is not known: no feature that asks for it is judged.
    `executor` is how an eviction would be carried out, which decides what memory comes back. `time` is the wall clock
    at `measured.now_ns`, RFC 3339. Without `podDisruptionBudgets` nothing is known of them; an empty list: there are
    none in the namespaces of these pods. `namespaces` are those of these pods, for their labels; of one that is left
    out nothing is known. `strategyInForce` is what an agent went by, after unusable parts of `nodeSLO` were replaced by
    the last good ones; null: there was none. Where it is set, `nodeSLO` and `sloControllerConfig` are not read.
    `states` is what strategies remembered, by name, of a frame of one moment (`koordebpf top --frame`); of a round of
    an agent its tick has them.
    """

    schema: Literal["koordebpf.frame/v3"]
    measured: Measured
    pods: tuple[Pod, ...] = ()
    node: Node | None = None
    nodeResourceTopology: NodeResourceTopology | None = None
    nodeSLO: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # msgspec cannot decode `Raw | None`
    sloControllerConfig: dict[str, str] | None = None
    featureGates: dict[str, bool] = {}
    executor: ExecutorName = "api"
    pending: tuple[PendingRelease, ...] = ()
    refused: tuple[RefusedEviction, ...] = ()
    lastEvictNs: NotNegative | None = None
    time: str | None = None
    ownPodUid: str | None = None  # the agent's own pod
    evictions: tuple[PastEviction, ...] = ()
    podDisruptionBudgets: tuple[PodDisruptionBudget, ...] | None = None
    lastCpuEvictNs: NotNegative | None = None  # by a feature that judges CPU; `lastEvictNs`: by one that judges memory
    startedNs: NotNegative | None = None  # when the agent that was running then had started; None: not known
    namespaces: tuple[Namespace, ...] = ()
    strategyInForce: ResourceThresholdStrategy | msgspec.UnsetType | None = msgspec.UNSET
    killed: tuple[str, ...] = ()  # uids of pods that an agent killed and that have had no process since
    recurring: tuple[RecurringEviction, ...] = ()
    states: dict[str, Any] = {}


FINISHED_PHASES = frozenset({"Succeeded", "Failed"})  # no process is left
LIVE_PHASES = frozenset({"Pending", "Running"})


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
    terms: PodTerms = PodTerms()
    cgroup_id: int | None = None
    memory: MemoryParts | None = None
    growth_bytes_per_s: float | None = None
    stall: StallParts | None = None
    shares: StallShares | None = None
    forecast: TimeTo | None = None
    cpu_used_millicpu: int | None = None  # None: not measured

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"


class NodeView(msgspec.Struct, frozen=True):
    """A frame as decisions read it: pods joined with what was measured of them, objects merged and checked.

    What the frame has as it is needed is read from `frame`. The other fields are worked out from it, or are such as a
    decision may suppose otherwise: how much is used, when it is, which gates are on.

    `facts`        of all pods, also of those that `pods` leaves out.
    `strategy`     merged and validated; None: not reported yet.
    `used_bytes`   None: not known.
    `allocatable`  node.status.allocatable, memory resources in bytes; None: no Node is known.
    `wall_s`       seconds since the epoch at `now_ns`.
    `namespace_labels`  of each namespace of which they are known.
    """

    frame: Frame
    now_ns: int
    capacity_bytes: int
    used_bytes: int | None
    pods: tuple[PodView, ...]
    strategy: ResourceThresholdStrategy | None
    feature_gates: dict[str, bool]
    facts: tuple[PodFacts, ...] = ()
    allocatable: dict[str, int] | None = None
    forecast: NodeForecast | None = None
    wall_s: float | None = None
    cpu: CpuView | None = None  # None: not measured
    namespace_labels: Mapping[str, Labels] = {}
    killed: frozenset[str] = frozenset()  # as Frame has it

    @property
    def measured(self) -> Measured:
        """What was measured."""
        return self.frame.measured

    @property
    def known_used_bytes(self) -> int:
        """`used_bytes` of a node that was measured.

        Raises:  ValueError: it is not known.
        """
        return known_bytes(self.used_bytes)
