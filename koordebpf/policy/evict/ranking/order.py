"""The order in which candidates go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.plan import Candidate
from koordebpf.state.view import PodView


def be_key(pod: PodView) -> int:
    """Return what comes before size in the order of best-effort pods."""
    return pod.priority or 0


def be_order(pods: Iterable[PodView], size: Callable[[PodView], int] = credit_bytes) -> list[PodView]:
    """Return the pods in Koordinator's order, the first victim first.

    spec.priority ascending, then `size` descending, then name descending; Koordinator's size is what it counts as used,
    which leaves out what the kernel holds for a pod. A missing
    priority counts as 0, the value the API server would have written; in Koordinator it falls through to usage, so
    that its order depends on the order of comparison. Namespace and uid settle what is left: the order is strict and
    total.

    Source: koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go, getSortedBEPodInfos.
    Cost:   1 µs a pod.
    """
    # Stable sorts, the last decides first: a string has no negative to put into one ascending key, and two sorts by
    # numbers take two thirds of the time of one by pairs of them.
    order = by_name(pods)
    order.sort(key=size, reverse=True)
    order.sort(key=be_key)
    return order


def by_name(pods: Iterable[PodView]) -> list[PodView]:
    """Return the pods by name descending, then namespace and uid: how ties are settled in every order."""
    by_name = attrgetter("name")
    order = sorted(pods, key=by_name, reverse=True)
    if len(set(map(by_name, order))) < len(order):
        # Three sorts by text take half the time of one by pairs of texts.
        order.sort(key=attrgetter("uid"))
        order.sort(key=attrgetter("namespace"))
        order.sort(key=by_name, reverse=True)
    return order


def as_candidates(
    order: Sequence[PodView],
    reliefs: Sequence[Relief],
    caused: Mapping[str, int] | None = None,
    *,
    as_koordinator: bool = False,
    disruption: str | None = None,
) -> tuple[Candidate, ...]:
    """Return pods that are in their order as candidates, ranks counted from 1.

    `reliefs`: those of the resources that were measured. `caused` None: there is no ledger. `as_koordinator`: the
    amounts are Koordinator's, which credits a tmpfs that outlives its pod and leaves out the kernel's memory.
    `disruption`: what most of them say; `select` puts right what is otherwise, since a new value costs 2 µs.
    """
    columns = [[each.holding(pod, as_koordinator) for pod in order] for each in reliefs]
    candidates: list[Candidate] = []
    for rank, (pod, holdings) in enumerate(zip(order, zip(*columns, strict=True), strict=True), 1):
        terms = pod.terms
        memory = pod.memory
        # Positional: half the time of keywords, and this runs for every pod of every feature that fires.
        candidates.append(
            Candidate(
                rank,
                pod.uid,
                pod.namespace,
                pod.name,
                pod.cgroup_id,
                pod.priority,
                holdings,
                memory.koordinator_used_bytes if memory is not None else 0,
                pod.growth_bytes_per_s,
                None if as_koordinator or memory is None else memory.kernel_bytes,
                terms.own_priority,
                None if terms.sub_priority == terms.priority else terms.sub_priority,
                None if caused is None else caused.get(pod.uid, 0),
                terms.workload,
                disruption,
            )
        )
    return tuple(candidates)
