"""MemoryAllocatableEvict: do pods of low priority ask for more memory than the node has for them."""

from __future__ import annotations

from koordebpf.policy.detect.allocatable import over_allocatable
from koordebpf.policy.detect.verdict import Verdict, skip, skipped
from koordebpf.slo.strategies.resource_threshold import (
    ResourceThresholdStrategy,
    allocatable_priority,
    memory_allocatable_percents,
    memory_allocatable_problem,
    memory_allocatable_problem_unless_written,
)
from koordebpf.state.pods.requests import BATCH_MEMORY, MID_MEMORY, NATIVE_MEMORY
from koordebpf.state.view import FINISHED_PHASES, NodeView

FEATURE = "MemoryAllocatableEvict"
_RESOURCES = (BATCH_MEMORY, MID_MEMORY, NATIVE_MEMORY)


def memory_allocatable_evict(view: NodeView, *, unless_written: bool = False) -> Verdict:
    """Judge what pods up to allocatablePriorityThreshold ask for against node.status.allocatable, by resource.

    Each pod asks for the resource of its band: batch-memory, mid-memory, or native memory for every other band. Pods
    that have ended ask for nothing; Koordinator counts them while kubelet lists them. With `unless_written` there is no
    default for a threshold that is absent, as in Koordinator.

    Fires if: requested > ⌊allocatable · threshold / 100⌋ of a resource, or something is requested of a resource that
             the node does not have any more (absent or 0): then all of it is the need.
    Skips:   as every feature, and no_node.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go.
    """
    problem_of = memory_allocatable_problem_unless_written if unless_written else memory_allocatable_problem
    if (unjudged := skipped(view, FEATURE, problem_of)) is not None:
        return unjudged
    if view.allocatable is None or view.strategy is None:
        return skip(FEATURE, "no_node", "no Node object is known: what is allocatable is not known")
    needs, sentences = over_allocatable(
        _requested(view, view.strategy),
        view.allocatable,
        memory_allocatable_percents(view.strategy),
    )
    total = sum(need.need for need in needs) if needs else None
    reason = "; ".join(sentences) or "no pod in reach asks for memory"
    return Verdict(FEATURE, bool(needs), reason, needs=needs, koordinator_need=total)


def _requested(view: NodeView, strategy: ResourceThresholdStrategy) -> dict[str, int]:
    highest = allocatable_priority(strategy)
    sums = dict.fromkeys(_RESOURCES, 0)
    for pod in view.pods:
        terms = pod.terms
        if terms.priority <= highest and pod.phase not in FINISHED_PHASES:
            sums[terms.memory_resource] += terms.memory_request_bytes
    return sums
