"""Every feature that evicts, in the order in which they are judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from koordebpf.policy.detect import be_cpu_evict, cpu_allocatable_evict, cpu_evict
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.by_feature import (
    candidates_by_priority,
    candidates_of,
    priority_key,
    priority_order,
)
from koordebpf.policy.evict.exemptions import exclusion
from koordebpf.policy.evict.features import MEMORY_FEATURES, Feature
from koordebpf.policy.evict.ranking import as_candidates, be_key, by_name, preferred
from koordebpf.policy.evict.resources import CPU_RELIEF
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate, Excluded
from koordebpf.policy.strategy import Ranking
from koordebpf.slo.strategies.resource_threshold import allocatable_priority
from koordebpf.state.amount import Resource
from koordebpf.state.view import NodeView, PodView


def _judge_be(view: NodeView, settings: EvictSettings) -> Verdict:
    return be_cpu_evict.be_cpu_evict(view, below_one_is_busy=settings.strict_compat)


def _judge_allocatable(view: NodeView, settings: EvictSettings) -> Verdict:
    return cpu_allocatable_evict.cpu_allocatable_evict(view, unless_written=settings.strict_compat)


def _judge_by_usage(view: NodeView, settings: EvictSettings) -> Verdict:
    return cpu_evict.cpu_evict(view, by_percent=settings.strict_compat)


def _rank_be(current: Round) -> Ranking:
    pods, excluded = candidates_of(current, be_cpu_evict.FEATURE, for_cpu=True)
    order = preferred(be_cpu_order(pods), be_key, _used_permille, {}, current.settings, current.victims)
    return as_candidates(order, current.reliefs), excluded


def _rank_allocatable(current: Round) -> Ranking:
    strategy = current.view.strategy
    highest = allocatable_priority(strategy) if strategy else 0
    pods, excluded = candidates_by_priority(
        current, cpu_allocatable_evict.FEATURE, highest, needs_usage=False, for_cpu=True
    )
    # Koordinator asks for a measured usage here too.
    measured, unmeasured = _measured(pods) if current.settings.strict_compat else (pods, [])
    return _by_priority(current, measured, _requested), (*excluded, *unmeasured)


def _rank_by_usage(current: Round) -> Ranking:
    strategy = current.view.strategy
    highest = (strategy.evictEnabledPriorityThreshold if strategy else None) or 0
    pods, excluded = candidates_by_priority(current, cpu_evict.FEATURE, highest, needs_usage=False, for_cpu=True)
    measured, unmeasured = _measured(pods)
    return _by_priority(current, measured, _used), (*excluded, *unmeasured)


def _measured(pods: Iterable[PodView]) -> tuple[list[PodView], list[Excluded]]:
    measured, unmeasured = [], []
    for pod in pods:
        if pod.cpu_used_millicpu is None:
            unmeasured.append(exclusion(pod, ("unmeasured", "its CPU usage was not measured")))
        else:
            measured.append(pod)
    return measured, unmeasured


def _by_priority(current: Round, pods: Iterable[PodView], size: Callable[[PodView], int]) -> tuple[Candidate, ...]:
    order = preferred(priority_order(pods, size), priority_key, size, {}, current.settings, current.victims)
    return as_candidates(order, current.reliefs)


def be_cpu_order(pods: Iterable[PodView]) -> list[PodView]:
    """Return the pods in Koordinator's order, the first victim first.

    spec.priority ascending, then the share of their request that they use descending: who asks for much and uses
    little stays. Name descending, namespace and uid settle what is left; there it is chance.

    Source: koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go, getPodEvictInfoAndSort.
    """
    order = by_name(pods)
    order.sort(key=lambda pod: (be_key(pod), -_used_permille(pod)))
    return order


# Of batch-cpu; 0 where it asks for none.
def _used_permille(pod: PodView) -> int:
    request = pod.terms.batch_cpu_millicpu
    return (pod.cpu_used_millicpu or 0) * 1000 // request if request else 0


def _used(pod: PodView) -> int:
    return pod.cpu_used_millicpu or 0


def _requested(pod: PodView) -> int:
    return pod.terms.cpu_request_millicpu


CPU_FEATURES = (
    Feature(be_cpu_evict.FEATURE, CPU_RELIEF, _judge_be, _rank_be, "best-effort pod"),
    Feature(
        cpu_allocatable_evict.FEATURE,
        CPU_RELIEF,
        _judge_allocatable,
        _rank_allocatable,
        "pod in reach of the priority threshold",
    ),
    Feature(cpu_evict.FEATURE, CPU_RELIEF, _judge_by_usage, _rank_by_usage, "pod in reach of the priority threshold"),
)


FEATURES = (*MEMORY_FEATURES, *CPU_FEATURES)
RESOURCE_OF: dict[str, Resource] = {feature.name: feature.relief.resource for feature in FEATURES}


def are_on(feature_gates: Mapping[str, bool], resource: Resource) -> bool:
    """Tell whether the gate of any feature that judges this resource is on."""
    return any(feature_gates.get(name, False) for name, each in RESOURCE_OF.items() if each == resource)
