"""Tie-break pods of equal priority: the aggressor first, owners spread, then by size as Koordinator does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

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
