"""The order in which candidates go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec.structs import replace

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.plan import Candidate, CandidateCpu
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
    caused: Mapping[str, int] | None = None,
    *,
    as_koordinator: bool = False,
    disruption: str | None = None,
) -> tuple[Candidate, ...]:
    """Return pods that are in their order as candidates, ranks counted from 1.

    `caused` None: there is no ledger. `as_koordinator`: the amounts are Koordinator's, which credits a tmpfs that
    outlives its pod and leaves out the kernel's memory.
    `disruption`: what most of them say; `select` puts right what is otherwise, since a new value costs 2 µs.
    """
    candidates: list[Candidate] = []
    for rank, pod in enumerate(order, 1):
        terms = pod.terms
        memory = pod.memory
        theirs = memory.koordinator_used_bytes if memory is not None else 0
        held = theirs if as_koordinator or memory is None else memory.held_bytes
        # Positional: half the time of keywords, and this runs for every pod of every feature that fires.
        candidates.append(
            Candidate(
                rank,
                pod.uid,
                pod.namespace,
                pod.name,
                pod.cgroup_id,
                pod.priority,
                held if memory is not None else None,
                held if as_koordinator or (theirs and not pod.keeps_tmpfs) else credit_bytes(pod),
                theirs,
                pod.growth_bytes_per_s,
                terms.memory_resource,
                terms.memory_request_bytes,
                terms.own_priority,
                None if terms.sub_priority == terms.priority else terms.sub_priority,
                None if caused is None else caused.get(pod.uid, 0),
                terms.workload,
                disruption,
                None,
                None if as_koordinator or memory is None else memory.kernel_bytes,
            )
        )
    return tuple(candidates)


def with_cpu(candidates: Iterable[Candidate], pods: Iterable[PodView]) -> tuple[Candidate, ...]:
    """Return candidates with what they would release of CPU; `pods` are the same ones in the same order."""
    return tuple(
        replace(
            candidate,
            cpu=CandidateCpu(
                used_millicpu=pod.cpu_used_millicpu,
                request_resource=pod.terms.cpu_resource,
                request_millicpu=pod.terms.cpu_request_millicpu,
                batch_millicpu=pod.terms.batch_cpu_millicpu,
            ),
        )
        for candidate, pod in zip(candidates, pods, strict=True)
    )
