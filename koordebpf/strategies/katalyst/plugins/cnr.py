"""Plugins that judge by the CustomNodeResource (CNR): NICs, and what reclaimed pods request. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/network, katalyst-core pkg/agent/evictionmanager/plugin/resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec.structs import replace

from koordebpf.policy.strategy import Empty
from koordebpf.state.cnr import Cnr, CnrZone
from koordebpf.state.pods.requests import NET_BANDWIDTH, RECLAIMED_CPU, RECLAIMED_MEMORY
from koordebpf.strategies.katalyst.plugin import NO_CNR, Grace, InnerPlugin, KatalystPod, Looked, Seen, coming_back
from koordebpf.strategies.katalyst.values import EvictAsked, Met, Threshold, TopPods
from koordebpf.units import NS_PER_S, format_ns

NIC_SELECTION_RESULT = "katalyst.kubewharf.io/nic_selection_result"  # of a pod: the name of its NIC
Amount = Callable[[KatalystPod], int]
Factor = Annotated[float, msgspec.Meta(gt=0)]
NUMA_BIND_RESULT = "katalyst.kubewharf.io/numa_bind_result"  # of a pod: the name of its zone
Requests = Mapping[str, int]  # by resource


# Soft eviction of pods whose NIC is unhealthy: without bandwidth in the CNR, or without a link.
#
# Source: network.go.


class NetworkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a NIC is unhealthy, and for how long before its pods are evicted.

    `is_on`         NICs are judged. Why off: Katalyst's eviction-network-nic-health-enable.
    `judges_links`  a NIC that has no link by /sys/class/net is unhealthy, too. Why on: the CNR follows only where
                    Katalyst's network plugin runs. It takes an agent in the node's network namespace.
    `tolerance_ns`  for so long without a break. Why 5 min: Katalyst's.
    `grace_seconds` of an evicted pod; None: its own. Why None: Katalyst's 0 deletes a Pod whose processes still run.
    """

    is_on: bool = False
    judges_links: bool = True
    tolerance_ns: Annotated[int, msgspec.Meta(ge=0)] = 300 * NS_PER_S
    grace_seconds: Grace = None


class NetworkState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Since when each NIC is unhealthy, by the name of its zone."""

    since_ns: Mapping[str, int] = {}


class NetworkPlugin(InnerPlugin[NetworkState, NetworkSettings]):
    """network-eviction-plugin."""

    name = "network-eviction-plugin"
    settings = NetworkSettings
    state = NetworkState

    def judge(self, seen: Seen, state: NetworkState, settings: NetworkSettings) -> Looked[NetworkState]:
        """Return the pods of NICs that have been unhealthy for as long as that is tolerated; each pod once."""
        if not settings.is_on:
            return Looked(state=NetworkState())
        cnr = seen.measured.cnr
        if cnr is None:
            return Looked(state=NetworkState(), lacks=NO_CNR)
        if not cnr.nics:
            return Looked(state=NetworkState(), lacks="the CustomNodeResource has no zone of a NIC")
        links = seen.measured.links if settings.judges_links else {}
        ill = {nic.name: why for nic in cnr.nics if (why := _illness(nic, links)) is not None}
        since_ns = {name: state.since_ns.get(name, seen.now_ns) for name in ill}
        evict: dict[str, EvictAsked] = {}
        for nic in cnr.nics:
            if nic.name not in ill or seen.now_ns - since_ns[nic.name] < settings.tolerance_ns:
                continue
            reason = f"its NIC {nic.name} has had {ill[nic.name]} for {format_ns(seen.now_ns - since_ns[nic.name])}"
            for each in _pods_on(nic, seen):
                evict.setdefault(each.pod.uid, EvictAsked(each.pod.uid, reason, grace_s=settings.grace_seconds))
        return Looked(state=NetworkState(since_ns), evict=tuple(evict.values()))


NETWORK = NetworkPlugin()


def _illness(nic: CnrZone, links: Mapping[str, bool]) -> str | None:
    if not nic.allocatable.get(NET_BANDWIDTH):
        return "no bandwidth in the CustomNodeResource"
    return None if links.get(nic.name, True) else "no link"


# Those to which the CNR gives some of its bandwidth, and those that were bound to it and request some.
def _pods_on(nic: CnrZone, seen: Seen) -> Iterator[KatalystPod]:
    for each in seen.soft:
        allocated, terms = nic.allocations.get(each.consumer, {}), each.pod.terms
        is_bound = terms.annotations.get(NIC_SELECTION_RESULT) == nic.name
        if allocated.get(NET_BANDWIDTH) or (is_bound and terms.katalyst_requests.get(NET_BANDWIDTH)):
            yield each


# Eviction where reclaimed pods request more than the CNR has to give now, of the node.
#
# Source: resources.go, reclaimed_resources.go.


class ReclaimedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When reclaimed pods request too much: of the node, or of a NUMA node, each in its own section.

    `is_on`        what they request is judged. Why on: Katalyst's eviction-plugins * has it.
    `cpu_factor`   of the CPU that the CNR has to give. Why 5: Katalyst's.
    `memory_factor` of the memory that it has to give. Why 5: Katalyst's.
    `soft_cpu_factor` of CPU for a soft threshold. Why None: Katalyst documents 1.5, and never reads it.
    `soft_memory_factor` the same of memory. Why None: Katalyst documents 1.2, and never reads it.
    `skip_zero`    resources of which 0 to give is no shortage. Why none: Katalyst's.
    `tolerance_ns` for so long before a pod is evicted. Why 0: Katalyst's.
    `grace_seconds` of an evicted pod; None: its own. Why 60: Katalyst's.
    """

    is_on: bool = True
    cpu_factor: Factor = 5.0
    memory_factor: Factor = 5.0
    soft_cpu_factor: Factor | None = None
    soft_memory_factor: Factor | None = None
    skip_zero: frozenset[str] = frozenset()
    tolerance_ns: int = 0
    grace_seconds: Grace = 60


class ReclaimedPlugin(InnerPlugin[Empty, ReclaimedSettings]):
    """reclaimed-resource-pressure-eviction-plugin."""

    name = "reclaimed-resource-pressure-eviction-plugin"
    settings = ReclaimedSettings
    state = Empty

    def judge(self, seen: Seen, state: Empty, settings: ReclaimedSettings) -> Looked[Empty]:
        """Return a threshold for the first resource, by name, of which reclaimed pods request too much."""
        if not settings.is_on:
            return Looked(state=state)
        cnr = seen.measured.cnr
        if cnr is None:
            return Looked(state=state, lacks=NO_CNR)
        if not cnr.allocatable:
            return Looked(state=state, lacks="the CustomNodeResource has no allocatable resources")
        return Looked(state=state, threshold=_threshold(seen, cnr, settings))

    def top_pods(self, seen: Seen, state: Empty, settings: ReclaimedSettings, top_n: int) -> tuple[TopPods, Empty]:
        """Return the reclaimed pods that request the most of the resource; for a soft threshold those to notify."""
        cnr = seen.measured.cnr
        found = None if cnr is None else _threshold(seen, cnr, settings)
        if found is None:
            return TopPods(()), state
        return top_of(found, found.scope, seen, _reclaimed_amount(found.scope), settings, top_n), state


RECLAIMED = ReclaimedPlugin()


def _threshold(seen: Seen, cnr: Cnr, settings: ReclaimedSettings) -> Threshold | None:
    asked = requested(each.pod.terms.katalyst_requests for each in seen.active if each.is_reclaimed)
    return exceeded(asked, cnr.allocatable, settings)


def requested(requests: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return what pods request together, by resource."""
    sums: dict[str, int] = {}
    for each in requests:
        for resource, amount in each.items():
            sums[resource] = sums.get(resource, 0) + amount
    return sums


def exceeded(asked: Mapping[str, int], total: Mapping[str, int], settings: ReclaimedSettings) -> Threshold | None:
    """Return a threshold for the first resource, by name, of which more is requested than its factor allows.

    Hard thresholds come first. Its scope is the resource.
    """
    hard = {RECLAIMED_CPU: settings.cpu_factor, RECLAIMED_MEMORY: settings.memory_factor}
    soft = {RECLAIMED_CPU: settings.soft_cpu_factor, RECLAIMED_MEMORY: settings.soft_memory_factor}
    factors: tuple[tuple[Met, Mapping[str, float | None]], ...] = (("hard", hard), ("soft", soft))
    for met, of in factors:
        for resource in sorted(asked):
            there, factor = total.get(resource), of.get(resource)
            if there is None or factor is None or (there <= 0 and resource in settings.skip_zero):
                continue
            if asked[resource] > factor * there:
                grace_s = settings.tolerance_ns // NS_PER_S
                return Threshold(met, resource, factor * there, float(asked[resource]), "greater_than", grace_s)
    return None


def top_of(
    threshold: Threshold, resource: str, seen: Seen, amount: Amount, settings: ReclaimedSettings, top_n: int
) -> TopPods:
    """Return the pods that request the most of a resource; for a soft threshold those to notify.

    None where pods that leave already cover what is missing.

    Args:
        threshold: which is met.
        resource: of which too much is requested.
        seen: as of the round.
        amount: what a pod requests of it; 0: it may not go for it.
        settings: of the plugin.
        top_n: at most so many for a hard threshold; 0: all.
    """
    need = threshold.observed - threshold.value
    waits = coming_back(seen, need, amount, lambda given: f"{given:,} of {resource}")
    if waits is not None:
        return TopPods((), waits=waits)
    if threshold.met == "hard":
        chosen = _largest((each for each in seen.candidates if amount(each)), amount)
        chosen = chosen[:top_n] if top_n else chosen
    else:
        chosen = _above((each for each in seen.soft if amount(each)), amount, threshold.value)
    return TopPods(tuple(each.pod.uid for each in chosen), settings.grace_seconds)


def _largest(pods: Iterable[KatalystPod], amount: Amount) -> list[KatalystPod]:
    return sorted(pods, key=lambda each: (-amount(each), each.pod.namespace, each.pod.name, each.pod.uid))


# Of the pods that want a notice the largest, which do not fit below the limit.
def _above(pods: Iterable[KatalystPod], amount: Amount, limit: float) -> list[KatalystPod]:
    ordered = _largest((each for each in pods if each.wants_notice), amount)
    fitting, kept = 0, 0
    for each in reversed(ordered):
        fitting += amount(each)
        if fitting >= limit:
            break
        kept += 1
    return ordered[: max(len(ordered) - kept, 1)]


def _reclaimed_amount(resource: str) -> Amount:
    return lambda each: each.pod.terms.katalyst_requests.get(resource, 0) if each.is_reclaimed else 0


# The same of a NUMA node.
#
# Source: zone_resources.go, reclaimed_numa_resources.go.


class _Short(NamedTuple):
    threshold: Threshold
    amounts: Mapping[str, int]  # of the resource that is short, by UID of the pods that may go


class ReclaimedNumaPlugin(InnerPlugin[Empty, ReclaimedSettings]):
    """reclaimed-numa-resource-pressure-eviction-plugin."""

    name = "reclaimed-numa-resource-pressure-eviction-plugin"
    settings = ReclaimedSettings
    state = Empty

    def judge(self, seen: Seen, state: Empty, settings: ReclaimedSettings) -> Looked[Empty]:
        """Return a threshold for the first zone and resource, by name, of which reclaimed pods request too much."""
        if not settings.is_on:
            return Looked(state=state)
        if (lacks := _lacks(seen)) is not None:
            return Looked(state=state, lacks=lacks)
        short = _short(seen, settings)
        return Looked(state=state, threshold=short.threshold if short else None)

    def top_pods(self, seen: Seen, state: Empty, settings: ReclaimedSettings, top_n: int) -> tuple[TopPods, Empty]:
        """Return the reclaimed pods that request the most of the resource in that zone."""
        short = None if _lacks(seen) is not None else _short(seen, settings)
        if short is None:
            return TopPods(()), state
        threshold, resource = short.threshold, short.threshold.scope.rpartition("|")[2]
        return top_of(
            threshold, resource, seen, lambda each: short.amounts.get(each.pod.uid, 0), settings, top_n
        ), state


RECLAIMED_NUMA = ReclaimedNumaPlugin()


# A zone of which nothing is known leaves the node unjudged: its pods may count elsewhere.
def _lacks(seen: Seen) -> str | None:
    cnr = seen.measured.cnr
    if cnr is None:
        return NO_CNR
    if not cnr.numa:
        return "the CustomNodeResource has no zone of a NUMA node"
    empty = [zone.name for zone in cnr.numa if not zone.allocatable]
    return f"the CustomNodeResource has no allocatable resources of NUMA zone {', '.join(empty)}" if empty else None


# A binding is an annotation, which a tenant may write: where a zone is short only by pods that are bound to it and that
# the CNR does not know there, they alone may go, after those of zones that are short without them.
def _short(seen: Seen, settings: ReclaimedSettings) -> _Short | None:
    surely: list[_Short | None] = []
    by_binding: list[_Short | None] = []
    for zone in seen.measured.cnr.numa if seen.measured.cnr else ():
        known, bound = _pods_of(zone, seen.active)
        everyone = {**known, **bound}
        surely.append(_exceeded(zone, known, everyone, settings))
        by_binding.append(_exceeded(zone, everyone, bound, settings))
    found = [short for short in (*surely, *by_binding) if short is not None]
    hard = [short for short in found if short.threshold.met == "hard"]
    return next(iter(hard or found), None)


# What reclaimed pods request of a zone, by UID: those that the CNR knows there, and those that are bound to it.
def _pods_of(zone: CnrZone, pods: Sequence[KatalystPod]) -> tuple[dict[str, Requests], dict[str, Requests]]:
    known: dict[str, Requests] = {}
    bound: dict[str, Requests] = {}
    for each in pods:
        if not each.is_reclaimed:
            continue
        pod, allocated = each.pod, zone.allocations.get(each.consumer)
        if allocated is not None:
            known[pod.uid] = allocated
        elif pod.terms.annotations.get(NUMA_BIND_RESULT) == zone.name:
            bound[pod.uid] = pod.terms.katalyst_requests
    return known, bound


def _exceeded(
    zone: CnrZone, counted: Mapping[str, Requests], may_go: Mapping[str, Requests], settings: ReclaimedSettings
) -> _Short | None:
    found = exceeded(requested(counted.values()), zone.allocatable, settings)
    if found is None:
        return None
    threshold = replace(found, scope=f"zone{zone.name}|{found.scope}")
    return _Short(threshold, {uid: requests.get(found.scope, 0) for uid, requests in may_go.items()})
