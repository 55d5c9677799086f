"""The order in which candidates go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate
from koordebpf.state.view import PodView


def preferred(
    order: Sequence[PodView],
    key: Callable[[PodView], Hashable],
    size: Callable[[PodView], int],
    caused: Mapping[str, int],
    settings: EvictSettings,
    earlier: Collection[Candidate] = (),
) -> Sequence[PodView]:
    """Return Koordinator's order with pods of the same `key` and class changed about among their own places.

    First the pods that made others stall for `aggressor_min_ns`, the most first. Then, by `size`, every other one; each
    further pod of one workload counts as half as large as it is, a quarter, and so on, where the victims of the
    features before this one count too. A place in the order is given up only to a pod of the same key and class, so no
    priority is crossed; with `across_priorities` those that made others stall come before all keys.
    """
    if settings.strict_compat:
        return order
    weight = {
        uid: ns for uid, ns in caused.items() if settings.prefer_aggressor and 0 < ns >= settings.aggressor_min_ns
    }
    if weight:
        groups = [list(range(len(order)))] if settings.across_priorities else _places(order, key, weight)
        order = _within(order, groups, lambda pod: -weight.get(pod.uid, 0))
    halvings = _halvings(order, earlier) if settings.spread_owners else {}
    if halvings:

        def rank(pod: PodView) -> tuple[int, int]:
            return -weight.get(pod.uid, 0), -(size(pod) >> halvings.get(pod.uid, 0))

        order = _within(order, _places(order, key, halvings), rank)
    return order


# uid → how many of its workload come before it, those that are gone already included; only where there are any.
def _halvings(order: Sequence[PodView], earlier: Collection[Candidate]) -> dict[str, int]:
    losing = Counter(each.workload for each in earlier if each.workload)
    halvings: dict[str, int] = {}
    for pod in order:
        if workload := pod.terms.workload:
            if count := losing[workload]:
                halvings[pod.uid] = count
            losing[workload] = count + 1
    return halvings


# The places of all pods that share key and class with one of `whom`, for each such key and class.
def _places(
    order: Sequence[PodView], key: Callable[[PodView], Hashable], whom: Collection[str]
) -> Collection[Sequence[int]]:
    places: dict[tuple[Hashable, str], list[int]] = {
        (key(pod), pod.koord_qos or pod.kube_qos): [] for pod in order if pod.uid in whom
    }
    for at, pod in enumerate(order) if places else ():
        group = places.get((key(pod), pod.koord_qos or pod.kube_qos))
        if group is not None:
            group.append(at)
    return places.values()


# Each group sorted for itself, in the places that it holds; stable.
def _within(
    order: Sequence[PodView], groups: Iterable[Sequence[int]], by: Callable[[PodView], int | tuple[int, int]]
) -> list[PodView]:
    result = list(order)
    for places in groups:
        for at, pod in zip(places, sorted([order[at] for at in places], key=by), strict=True):
            result[at] = pod
    return result


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
