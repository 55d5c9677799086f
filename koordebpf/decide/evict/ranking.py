"""The order in which candidates go."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.decide.evict.credit import credit_bytes, koordinator_credit_bytes
from koordebpf.decide.plan import Candidate
from koordebpf.state.view import PodView


def ranked(pods: Iterable[PodView]) -> tuple[Candidate, ...]:
    """Return the pods as candidates, the first to go first.

    spec.priority ascending, then used memory descending, then name descending: Koordinator's order. A missing
    priority counts as 0, the value the API server would have written; in Koordinator it falls through to usage, so
    that its order depends on the order of comparison. Namespace and uid settle what is left: the order is strict and
    total.

    Source: koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go, getSortedBEPodInfos.
    Cost:   1 µs a pod.
    """
    # Three stable sorts, the last decides first: a string has no negative to put into one ascending key.
    order = sorted(pods, key=lambda pod: (pod.namespace, pod.uid))
    order.sort(key=lambda pod: pod.name, reverse=True)
    order.sort(key=lambda pod: (pod.priority or 0, -koordinator_credit_bytes(pod)))
    return tuple(
        Candidate(
            rank=rank,
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            cgroup_id=pod.cgroup_id,
            priority=pod.priority,
            used_bytes=pod.memory.koordinator_used_bytes if pod.memory else None,
            credit_bytes=credit_bytes(pod),
            koordinator_credit_bytes=koordinator_credit_bytes(pod),
            growth_bytes_per_s=pod.growth_bytes_per_s,
        )
        for rank, pod in enumerate(order, 1)
    )
