"""Pods, strategy and measurement to one `NodeView`; the agent and every replay go through here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from koordebpf.kube.cache.objects import Namespace, Node
from koordebpf.quantity import quantity_bytes
from koordebpf.slo.nodeslo import strategy_for
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.balance import pods_with_swap
from koordebpf.state.cpu.view import cpu_view
from koordebpf.state.decision_memory import DecisionMemory
from koordebpf.state.measured import Measured, NodeMeasure, PodMeasure
from koordebpf.state.pods.facts import PodFacts, facts_of_pods, seconds_of
from koordebpf.state.pods.requests import BATCH_MEMORY, MID_MEMORY, NATIVE_MEMORY
from koordebpf.state.view import Frame, Labels, NodeView, PodView
from koordebpf.units import format_bytes

_ALIKE_PERCENT = 2  # Why: what a kernel keeps for itself may change a little with its release; a module is more


def view_of_frame(frame: Frame, *, strict: bool = False, facts: Sequence[PodFacts] | None = None) -> NodeView:
    """Return the view a frame stands for: every pod with what was measured of it, measured or not.

    Args:
        frame: of one moment.
        strict: percents are of the Node's capacity, as with `compat: strict`.
        facts: of the frame's pods where the caller has decoded them already, as an agent does once per change.

    Raises: ConfigError: its NodeSLO, ConfigMap or a quantity in it is unusable.
    Cost:   0.5 µs a pod (measured at 110 and 500).
    """
    measured, node = frame.measured, frame.node
    facts = tuple(facts_of_pods(frame.pods) if facts is None else facts)
    cpu = measured.cpu
    return NodeView(
        frame=frame,
        now_ns=measured.now_ns,
        capacity_bytes=node_capacity_bytes(node, measured.node, strict=strict),
        used_bytes=measured.node.used_bytes,
        pods=_pod_views(facts, measured, frame.executor),
        strategy=strategy_of_frame(frame),
        feature_gates=frame.featureGates,
        facts=facts,
        allocatable=allocatable_memory(node),
        forecast=measured.node.forecast,
        wall_s=None if frame.time is None else seconds_of(frame.time, "time"),
        cpu=cpu_view(cpu, facts, node, frame.nodeResourceTopology) if cpu is not None else None,
        namespace_labels=namespace_labels(frame.namespaces),
        killed=frozenset(frame.killed),
    )


def with_memory(view: NodeView, memory: DecisionMemory) -> NodeView:
    """Return the view with another memory of evictions."""
    return msgspec.structs.replace(view, frame=remembering(view.frame, memory), killed=memory.killed)


def remembering(frame: Frame, memory: DecisionMemory) -> Frame:
    """Return the frame with what is remembered of earlier evictions."""
    return msgspec.structs.replace(
        frame,
        pending=memory.pending,
        refused=memory.refused,
        lastEvictNs=memory.last.last_ns(for_cpu=False),
        evictions=memory.budget.recent(frame.measured.now_ns),
        lastCpuEvictNs=memory.last.last_ns(for_cpu=True),
        killed=tuple(sorted(memory.killed)),
        recurring=memory.recurring,
    )


def namespace_labels(namespaces: Iterable[Namespace]) -> dict[str, Labels]:
    """Return the labels of each namespace by its name, in a form that can be hashed."""
    return {each.metadata.name: tuple(sorted((each.metadata.labels or {}).items())) for each in namespaces}


def strategy_of_frame(frame: Frame) -> ResourceThresholdStrategy | None:
    """Return the effective strategy of a frame; None: no source has one.

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
    # A kernel that shows no memory at all shows a container's view: a guard says so.
    if written is None or total == 0 or abs(written - total) * 100 <= _ALIKE_PERCENT * max(written, total):
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
    measures = {measure.uid: measure for measure in pods_with_swap(measured)}
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
