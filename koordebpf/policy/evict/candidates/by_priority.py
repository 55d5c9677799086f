"""Who may be evicted by MemoryEvict and MemoryAllocatableEvict, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordebpf.policy.evict.candidates.best_effort import excluding_now
from koordebpf.policy.evict.candidates.protection import Reason, exclusion
from koordebpf.policy.evict.ranking import by_name
from koordebpf.policy.evict.round import Round
from koordebpf.policy.plan import Excluded
from koordebpf.slo.pods.eviction import EVICTION_ENABLED_LABEL
from koordebpf.state.view import PodView


def candidates_by_priority(
    current: Round, feature: str, highest: int, *, needs_usage: bool, for_cpu: bool = False
) -> tuple[tuple[PodView, ...], tuple[Excluded, ...]]:
    """Split the pods into candidates and excluded ones; a pod above `highest` that asks for no eviction is in neither.

    A candidate runs or will run, has a priority of at most `highest` (the default of its band where it has none), and
    carries the label koordinator.sh/eviction-enabled=true. Koordinator asks for a measured usage in both features; here
    only the one that counts usage does, unless with `strict_compat`.
    """
    why_not = excluding_now(current, feature, needs_usage=needs_usage, for_cpu=for_cpu)
    candidates: list[PodView] = []
    excluded: list[Excluded] = []
    for pod in current.view.pods:
        terms = pod.terms
        found: Reason | None
        if terms.priority > highest:
            if not terms.is_enabled:
                continue
            found = "priority", f"its priority {terms.priority} is above {highest}"
        elif not terms.is_enabled:
            found = "not_enabled", f"it has no label {EVICTION_ENABLED_LABEL}=true"
        else:
            found = why_not(pod)
        if found is None:
            candidates.append(pod)
        else:
            excluded.append(exclusion(pod, found))
    return tuple(candidates), tuple(excluded)


def priority_key(pod: PodView) -> tuple[int, int, int]:
    """Return what comes before size: annotation eviction-priority, priority, label koordinator.sh/priority."""
    return pod.terms.own_priority, pod.terms.priority, pod.terms.sub_priority


def priority_order(pods: Iterable[PodView], size: Callable[[PodView], int]) -> list[PodView]:
    """Return the pods in Koordinator's order, the first victim first.

    `priority_key` ascending, then `size` descending; exact ties are settled by chance there. Here name descending,
    namespace and uid settle them.

    Source: koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go, getPodEvictInfoAndSortByPriority.
    """

    def rank(pod: PodView) -> tuple[int, int, int, int]:
        terms = pod.terms
        return terms.own_priority, terms.priority, terms.sub_priority, -size(pod)

    order = by_name(pods)
    order.sort(key=rank)
    return order
