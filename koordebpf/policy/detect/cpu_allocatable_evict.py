"""CPUAllocatableEvict: do pods of low priority ask for more CPU than the node has for them."""

from __future__ import annotations

from koordebpf.policy.detect.allocatable import over_allocatable
from koordebpf.policy.detect.verdict import Verdict, skip, skipped_cpu
from koordebpf.slo.strategies.resource_threshold import (
    allocatable_priority,
    cpu_allocatable_percents,
    cpu_allocatable_problem,
    cpu_allocatable_problem_unless_written,
)
from koordebpf.state.pods.requests import BATCH_CPU, MID_CPU, NATIVE_CPU
from koordebpf.state.view import FINISHED_PHASES, NodeView

FEATURE = "CPUAllocatableEvict"
_RESOURCES = (BATCH_CPU, MID_CPU, NATIVE_CPU)


def cpu_allocatable_evict(view: NodeView, *, unless_written: bool = False) -> Verdict:
    """Judge what pods up to allocatablePriorityThreshold ask for against node.status.allocatable, by resource.

    As MemoryAllocatableEvict, `unless_written` included. Koordinator keeps native CPU in whole CPUs here and counts a
    pod of 500m as one.

    Fires if: requested > ⌊allocatable · threshold / 100⌋ of a resource, or something is requested of a resource that
             the node does not have any more (absent or 0): then all of it is the need.
    Skips:   as every feature of CPU, and no_node.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go.
    """
    problem_of = cpu_allocatable_problem_unless_written if unless_written else cpu_allocatable_problem
    if (unjudged := skipped_cpu(view, FEATURE, problem_of)) is not None:
        return unjudged
    if view.cpu is None or view.cpu.allocatable is None or view.strategy is None:
        return skip(FEATURE, "no_node", "no Node object is known: what is allocatable is not known")
    needs, sentences = over_allocatable(
        _requested(view, allocatable_priority(view.strategy)),
        view.cpu.allocatable,
        cpu_allocatable_percents(view.strategy),
    )
    reason = "; ".join(sentences) or "no pod in reach asks for CPU"
    return Verdict(FEATURE, bool(needs), reason, needs=needs)


def _requested(view: NodeView, highest: int) -> dict[str, int]:
    sums = dict.fromkeys(_RESOURCES, 0)
    for pod in view.pods:
        if pod.terms.priority <= highest and pod.phase not in FINISHED_PHASES:
            sums[pod.terms.cpu_resource] += pod.terms.cpu_request_millicpu
    return sums
