"""Short ways to write down a node, its pods and what was measured of them.

A frame is built, not a view: every test takes the path of `koordebpf plan`. Sizes are MiB, the node has 1000 of them
unless said otherwise, so that a percent is 10 MiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.collect.cluster_view import frame_of
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.kube.cache.objects import (
    Container,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    Node,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Volume,
)
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import FeaturePlan, Plan
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import Measured, MemoryParts, NodeMeasure, PodMeasure, StallParts
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import ExecutorName, Frame, NodeView, PendingRelease
from koordebpf.units import MIB, NS_PER_S

T = TypeVar("T")

NOW_NS = 1_000 * NS_PER_S
CAPACITY_MIB = 1000
DEFAULTS = EvictSettings()


class PodAndMeasure(msgspec.Struct, frozen=True):
    """A Pod object and what was measured of it, None where it was not."""

    pod: Pod
    measure: PodMeasure | None


def pod(
    name: str,
    *,
    anon: int = 0,
    file: int = 0,
    shmem: int | None = None,
    unevictable: int = 0,
    kernel: int | None = None,
    qos: str | None = "BE",
    kube_qos: str = "BestEffort",
    priority: int | None = 5000,
    phase: str = "Running",
    terminating: bool = False,
    policy: str | None = None,
    mirror: bool = False,
    measured: bool = True,
    has_cgroup: bool = True,
    volumes: Iterable[Volume] = (),
    stall: StallParts | None = None,
    growth: float | None = None,
    namespace: str = "spark",
    uid: str | None = None,
    labels: Mapping[str, str] | None = None,
    own_priority: str | None = None,
    owner: str | None = None,
    priority_class: str = "",
    ready: bool = True,
    start_time: str | None = None,
    requests: Mapping[str, str] | None = None,
) -> PodAndMeasure:
    """Return a running best-effort pod, changed as asked; `anon` includes `shmem`, as the kernel's lists do."""
    uid = uid or f"uid-{namespace}-{name}"
    annotations = {
        **({"koordinator.sh/eviction-policy": policy} if policy is not None else {}),
        **({"kubernetes.io/config.mirror": "x"} if mirror else {}),
        **({"koordinator.sh/eviction-priority": own_priority} if own_priority is not None else {}),
    }
    labels = {**({"koordinator.sh/qosClass": qos} if qos is not None else {}), **(labels or {})}
    main = Container(name="main", resources=ResourceRequirements(requests=dict(requests or {})))
    memory = MemoryParts(
        usage_bytes=(anon + file + unevictable + (kernel or 0)) * MIB,
        inactive_anon_bytes=anon * MIB // 4,
        active_anon_bytes=anon * MIB - anon * MIB // 4,
        inactive_file_bytes=file * MIB,
        active_file_bytes=0,
        unevictable_bytes=unevictable * MIB,
        shmem_bytes=None if shmem is None else shmem * MIB,
        kernel_bytes=None if kernel is None else kernel * MIB,
    )
    return PodAndMeasure(
        Pod(
            metadata=ObjectMeta(
                name=name,
                namespace=namespace,
                uid=uid,
                labels=labels or None,
                annotations=annotations or None,
                ownerReferences=[_owner(owner)] if owner else None,
                deletionTimestamp="2026-01-01T00:00:30Z" if terminating else None,
            ),
            spec=PodSpec(
                priority=priority,
                priorityClassName=priority_class,
                volumes=list(volumes) or None,
                containers=[main] if requests else [],
            ),
            status=PodStatus(
                phase=phase,
                qosClass=kube_qos,
                conditions=[PodCondition("Ready", "True" if ready else "False")],
                startTime=start_time,
            ),
        ),
        PodMeasure(
            uid=uid,
            cgroup_id=hash_of(uid) if has_cgroup else None,
            memory=memory if has_cgroup else None,
            growth_bytes_per_s=growth,
            stall=stall,
        )
        if measured
        else None,
    )


def _owner(text: str) -> OwnerReference:
    # KIND/NAME, or the name of a ReplicaSet.
    kind, slash, name = text.rpartition("/")
    return OwnerReference(kind if slash else "ReplicaSet", name, f"uid-{name}", True)


def ls_pod(name: str, *, anon: int = 0, terminating: bool = False) -> PodAndMeasure:
    """Return a latency-sensitive pod."""
    return pod(name, anon=anon, qos="LS", kube_qos="Burstable", priority=9500, namespace="web", terminating=terminating)


def hash_of(uid: str) -> int:
    """Return a small number that is the same on every run, unlike hash()."""
    return sum((index + 1) * byte for index, byte in enumerate(uid.encode())) + 1000


def memory_volume() -> Volume:
    """Return an emptyDir on tmpfs."""
    return Volume(name="scratch", emptyDir=EmptyDirVolumeSource(medium="Memory"))


def host_shm() -> Volume:
    """Return the host's /dev/shm as a volume."""
    return Volume(name="shm", hostPath=HostPathVolumeSource(path="/dev/shm/cache"))


def frame(
    pods: Iterable[PodAndMeasure],
    *,
    used: int | None = None,
    used_bytes: int | None = None,
    capacity: str | None = f"{CAPACITY_MIB}Mi",
    total_bytes: int = CAPACITY_MIB * MIB,
    scope: Literal["machine", "cgroup"] = "machine",
    threshold: dict[str, Any] | None = None,
    gate: bool = True,
    executor: Literal["api", "cgroup"] = "api",
    pending: Iterable[PendingRelease] = (),
    last_evict_ns: int | None = None,
    stall: StallParts | None = None,
    gates: Mapping[str, bool] | None = None,
    allocatable: Mapping[str, str] | None = None,
) -> Frame:
    """Return a frame with BEMemoryEvict on at 80 %, down to 78 %, unless `threshold` says otherwise."""
    pods = tuple(pods)
    strategy = {"enable": True, "memoryEvictThresholdPercent": 80} if threshold is None else threshold
    return Frame(
        schema="koordebpf.frame/v3",
        measured=Measured(
            now_ns=NOW_NS,
            since_ns=NOW_NS - 1_000_000,
            node=NodeMeasure(
                scope=scope,
                total_bytes=total_bytes,
                used_bytes=(used or 0) * MIB if used_bytes is None else used_bytes,
                stall=stall,
            ),
            pods=tuple(each.measure for each in pods if each.measure is not None),
        ),
        pods=tuple(each.pod for each in pods),
        node=Node(
            metadata=ObjectMeta(name="node-1", labels={"pool": "batch"}),
            status=NodeStatus(
                capacity={"memory": capacity} if capacity is not None else None,
                allocatable=None if allocatable is None else dict(allocatable),
            ),
        ),
        nodeSLO=msgspec.Raw(json.dumps({"spec": {"resourceUsedThresholdWithBE": strategy}}).encode()),
        featureGates={"BEMemoryEvict": gate} if gates is None else dict(gates),
        executor=executor,
        pending=tuple(pending),
        lastEvictNs=last_evict_ns,
    )


def in_flight(each: PodAndMeasure, *, credit: int, seconds_ago: float) -> PendingRelease:
    """Return the note that a pod was evicted and its memory is awaited."""
    return PendingRelease(uid=each.pod.uid, since_ns=NOW_NS - int(seconds_ago * NS_PER_S), credit_bytes=credit * MIB)


def plan_of(recorded: Frame, settings: EvictSettings = DEFAULTS) -> Plan:
    """Return the decision for a frame, by way of its JSON."""
    return decide(view_of_frame(decode_frame(encode_frame(recorded), "frame")), settings)


def read_back(value: T) -> T:
    """Return what the value's JSON holds."""
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


def node_plan_of(recorded: Frame, settings: EvictSettings = DEFAULTS) -> NodePlan:
    """Return the same with suppression beside it."""
    return decide_node(view_of_frame(decode_frame(encode_frame(recorded), "frame")), settings)


def feature_of(recorded: Frame, settings: EvictSettings = DEFAULTS) -> FeaturePlan:
    """Return the only feature's part of the decision for a frame."""
    (feature,) = plan_of(recorded, settings).features
    return feature


def names(feature: FeaturePlan) -> list[str]:
    """Return the victims' names in order."""
    return [victim.candidate.name for victim in feature.victims]


def why_not(feature: FeaturePlan) -> dict[str, str]:
    """Return the excluded pods' names and codes."""
    return {each.name: each.code for each in feature.excluded}


def view_of_measured(
    measured: Measured,
    facts: Iterable[PodFacts] = (),
    *,
    strategy: ResourceThresholdStrategy | None = None,
    gates: Mapping[str, bool] | None = None,
    executor: ExecutorName = "api",
) -> NodeView:
    """Return the view of a measurement, of these pods, without any object of the node."""
    made = frame_of(None, measured, feature_gates=gates or {}, executor=executor)
    return view_of_frame(replace(made, strategyInForce=strategy), facts=tuple(facts))


def supposed(view: NodeView, **fields: Any) -> NodeView:
    """Return a view in which some fields are others: its own, and those of its frame."""
    own = {name: each for name, each in fields.items() if name in NodeView.__struct_fields__}
    of_frame = {name: each for name, each in fields.items() if name not in own}
    return replace(view, frame=replace(view.frame, **of_frame), **own)
