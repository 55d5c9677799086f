"""Eviction where reclaimed pods request more of a NUMA node than the CNR has to give of it now. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/resource/{zone_resources,reclaimed_numa_resources}.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from koordebpf.policy.katalyst.plugin import NO_CNR, InnerPlugin, Looked, Seen
from koordebpf.policy.katalyst.plugins.reclaimed import ReclaimedSettings, exceeded, requested, top_of
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.policy.strategy import Empty
from koordebpf.state.katalyst.measured import CnrZone, Threshold, TopPods

NUMA_BIND_RESULT = "katalyst.kubewharf.io/numa_bind_result"  # of a pod: the name of its zone

Requests = Mapping[str, int]  # by resource


class _Short(NamedTuple):
    threshold: Threshold
    amounts: Mapping[str, int]  # of the resource that is short, by UID of the pods that may go


class ReclaimedNumaPlugin(InnerPlugin[Empty, ReclaimedSettings]):
    """reclaimed-numa-resource-pressure-eviction-plugin."""

    name = "reclaimed-numa-resource-pressure-eviction-plugin"
    settings = ReclaimedSettings
    state = Empty

    def look(self, seen: Seen, state: Empty, settings: ReclaimedSettings) -> Looked[Empty]:
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
