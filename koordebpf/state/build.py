"""Pods, strategy and measurement to one `NodeView`; the agent and every replay go through here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordebpf.kube.cache.objects import Namespace, Node, NodeResourceTopology, PodDisruptionBudget
from koordebpf.quantity import quantity_bytes
from koordebpf.slo.nodeslo import strategy_for
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.cpu.view import cpu_view
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.measured import Measured, NodeMeasure, PodMeasure
from koordebpf.state.pods.facts import PodFacts, facts_of_pods, seconds_of
from koordebpf.state.pods.requests import BATCH_MEMORY, MID_MEMORY, NATIVE_MEMORY
from koordebpf.state.suppression import SuppressState
from koordebpf.state.view import (
    ExecutorName,
    Frame,
    Labels,
    NodeView,
    PastEviction,
    PendingRelease,
    PodView,
    RefusedEviction,
)
from koordebpf.units import format_bytes

_ALIKE_PERCENT = 2  # Why: what a kernel keeps for itself may change a little with its release; a module is more


def build_view(
    *,
    pods: Sequence[PodFacts],
    node: Node | None,
    strategy: ResourceThresholdStrategy | None,
    measured: Measured,
    feature_gates: Mapping[str, bool],
    executor: ExecutorName = "api",
    pending: Sequence[PendingRelease] = (),
    refused: Sequence[RefusedEviction] = (),
    last_evict_ns: int | None = None,
    topology: NodeResourceTopology | None = None,
    wall_s: float | None = None,
    own_pod_uid: str | None = None,
    evictions: Sequence[PastEviction] = (),
    pdbs: Sequence[PodDisruptionBudget] | None = None,
    last_cpu_evict_ns: int | None = None,
    started_ns: int | None = None,
    suppression: SuppressState | None = None,
    namespaces: Iterable[Namespace] = (),
    strict: bool = False,  # percents are of the Node's capacity, as with `compat: strict`
) -> NodeView:
    """Return the node as one value: every pod with what was measured of it, measured or not.

    Raises: ConfigError: a quantity of the Node is none.
    Cost:   0.5 µs a pod (measured at 110 and 500).
    """
    return NodeView(
        now_ns=measured.now_ns,
        capacity_bytes=node_capacity_bytes(node, measured.node, strict=strict),
        used_bytes=measured.node.used_bytes,
        pods=_pod_views(pods, measured, executor),
        strategy=strategy,
        feature_gates=dict(feature_gates),
        measure=measured.node,
        executor=executor,
        pending=tuple(pending),
        refused=tuple(refused),
        last_evict_ns=last_evict_ns,
        strays=measured.strays,
        allocatable=allocatable_memory(node),
        ledger=measured.ledger,
        forecast=measured.node.forecast,
        cpu=cpu_view(measured.cpu, pods, node, topology) if measured.cpu is not None else None,
        wall_s=wall_s,
        own_pod_uid=own_pod_uid,
        evictions=tuple(evictions),
        pdbs=None if pdbs is None else tuple(pdbs),
        last_cpu_evict_ns=last_cpu_evict_ns,
        started_ns=started_ns,
        suppression=suppression,
        namespace_labels=namespace_labels(namespaces),
        stall_window=measured.stall_window,
        parts=measured.parts,
        facts=tuple(pods),
        node=node,
        topology=topology,
    )


def view_of_frame(frame: Frame, *, strict: bool = False, facts: Sequence[PodFacts] | None = None) -> NodeView:
    """Return the view a frame stands for; `strict` as in `build_view`.

    `facts` are those of the frame's pods where the caller has decoded them already, as an agent does once per change.

    Raises: ConfigError: its NodeSLO, ConfigMap or a quantity in it is unusable.
    """
    view = build_view(
        pods=facts_of_pods(frame.pods) if facts is None else facts,
        node=frame.node,
        strategy=strategy_of_frame(frame),
        measured=frame.measured,
        feature_gates=frame.featureGates,
        executor=frame.executor,
        pending=frame.pending,
        refused=frame.refused,
        last_evict_ns=frame.lastEvictNs,
        topology=frame.nodeResourceTopology,
        wall_s=None if frame.time is None else seconds_of(frame.time, "time"),
        own_pod_uid=frame.ownPodUid,
        evictions=frame.evictions,
        pdbs=frame.podDisruptionBudgets,
        last_cpu_evict_ns=frame.lastCpuEvictNs,
        started_ns=frame.startedNs,
        suppression=frame.suppression,
        namespaces=frame.namespaces,
        strict=strict,
    )
    return msgspec.structs.replace(view, killed=frozenset(frame.killed)) if frame.killed else view


def with_memory(view: NodeView, memory: DecisionMemory) -> NodeView:
    """Return the view with another memory of evictions."""
    return msgspec.structs.replace(
        view,
        pending=memory.pending,
        refused=memory.refused,
        last_evict_ns=memory.last.last_ns(for_cpu=False),
        evictions=memory.budget.recent(view.now_ns),
        last_cpu_evict_ns=memory.last.last_ns(for_cpu=True),
        killed=memory.killed,
    )


def namespace_labels(namespaces: Iterable[Namespace]) -> dict[str, Labels]:
    """Return the labels of each namespace by its name, in a form that can be hashed."""
    return {each.metadata.name: tuple(sorted((each.metadata.labels or {}).items())) for each in namespaces}


def strategy_of_frame(frame: Frame) -> ResourceThresholdStrategy | None:
    """Return the strategy in force in a frame; None: no source has one.

    Raises: ConfigError: its NodeSLO or ConfigMap is unusable.
    """
    if not isinstance(frame.strategyInForce, msgspec.UnsetType):
        return frame.strategyInForce
    labels = frame.node.metadata.labels if frame.node else None
    nodeslo = None if isinstance(frame.nodeSLO, msgspec.UnsetType) or bytes(frame.nodeSLO) == b"null" else frame.nodeSLO
    return strategy_for(nodeslo, frame.sloControllerConfig, labels)


def node_capacity_bytes(node: Node | None, measure: NodeMeasure, *, strict: bool = False) -> int:
    """Return what the percents refer to.

    For the machine it is MemTotal, what the kernel has now. With `strict` it is node.status.capacity.memory, as in
    Koordinator, and MemTotal while that is not known; kubelet takes the one from the other when it starts, and does not
    see memory that is plugged in or out later. For a node cgroup it is the cgroup's limit: the Node speaks of the whole
    machine.

    Raises: ConfigError: the Node's memory capacity is no quantity.
    """
    written = _written_capacity_bytes(node, measure)
    return written if strict and written is not None else measure.total_bytes


def capacity_doubt(node: Node | None, measure: NodeMeasure, *, strict: bool = False) -> str | None:
    """Return what is to be said where the Node and the kernel disagree on how much memory there is; None: they agree.

    Raises: ConfigError: the Node's memory capacity is no quantity.
    """
    written, total = _written_capacity_bytes(node, measure), measure.total_bytes
    if written is None or abs(written - total) * 100 <= _ALIKE_PERCENT * max(written, total):
        return None
    taken = "node.status.capacity, as in Koordinator" if strict else "MemTotal"
    return (
        f"the kernel has {format_bytes(total)} (MemTotal), node.status.capacity.memory says {format_bytes(written)}: "
        f"percents are of {taken}; restart kubelet so that the scheduler knows too"
    )


def _written_capacity_bytes(node: Node | None, measure: NodeMeasure) -> int | None:
    capacity = node.status.capacity if node is not None else None
    if measure.scope == "cgroup" or not capacity or "memory" not in capacity:
        return None
    return quantity_bytes(capacity["memory"], "node.status.capacity.memory")


def allocatable_memory(node: Node | None) -> dict[str, int] | None:
    """Return node.status.allocatable of every memory resource, in bytes; None where no Node is known.

    Raises: ConfigError: a quantity is none, or negative.
    """
    if node is None:
        return None
    written = node.status.allocatable or {}
    return {
        name: quantity_bytes(written[name], f"node.status.allocatable.{name}")
        for name in (NATIVE_MEMORY, BATCH_MEMORY, MID_MEMORY)
        if name in written
    }


def _pod_views(pods: Sequence[PodFacts], measured: Measured, executor: str) -> tuple[PodView, ...]:
    measures = {measure.uid: measure for measure in measured.pods}
    usage = measured.cpu.usage if measured.cpu is not None else None
    used = {pod.uid: pod.used_millicpu for pod in usage.pods} if usage is not None else {}
    return tuple(_pod_view(facts, measures.get(facts.uid), executor, used.get(facts.uid)) for facts in pods)


def _pod_view(facts: PodFacts, measure: PodMeasure | None, executor: str, used_millicpu: int | None) -> PodView:
    # Positional: half the time of keywords, and this runs for every pod on every tick.
    return PodView(
        facts.uid,
        facts.namespace,
        facts.name,
        facts.phase,
        facts.is_terminating,
        facts.kube_qos,
        facts.koord_qos,
        facts.priority,
        facts.eviction_policy,
        facts.keeps_tmpfs(executor),
        facts.koord_qos_label,
        facts.is_mirror,
        facts.terms,
        *(
            (
                measure.cgroup_id,
                measure.memory,
                measure.growth_bytes_per_s,
                measure.stall,
                measure.shares,
                measure.forecast,
            )
            if measure
            else (None, None, None, None, None, None)
        ),
        used_millicpu,
    )
