"""Eviction where reclaimed pods request more of a NUMA node than the CNR has to give of it now. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/resource/{zone_resources,reclaimed_numa_resources}.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from koordebpf.policy.katalyst.plugin import InnerPlugin, Looked, Seen
from koordebpf.policy.katalyst.plugins.reclaimed import ReclaimedSettings, chosen_for, over
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.policy.strategy import Empty
from koordebpf.state.katalyst.answers import Threshold, TopPods
from koordebpf.state.katalyst.measured import CnrZone
from koordebpf.units import NS_PER_S

NUMA_BIND_RESULT = "katalyst.kubewharf.io/numa_bind_result"  # of a pod: the name of its zone

Requests = Mapping[str, int]  # by resource


class _Short(NamedTuple):
    threshold: Threshold
    zone: CnrZone
    resource: str


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
        amounts = {each.pod.uid: _requests(each, short.zone).get(short.resource, 0) for each in seen.candidates}
        pods = [each for each in seen.candidates if each.is_reclaimed and amounts[each.pod.uid]]
        chosen = chosen_for(short.threshold, pods, lambda each: amounts[each.pod.uid], top_n)
        return TopPods(chosen, settings.grace_seconds), state


RECLAIMED_NUMA = ReclaimedNumaPlugin()


# A zone of which nothing is known leaves the node unjudged: its pods may count elsewhere.
def _lacks(seen: Seen) -> str | None:
    cnr = seen.measured.cnr
    if cnr is None:
        return "there is no CustomNodeResource of this node"
    if not cnr.numa:
        return "the CustomNodeResource has no zone of a NUMA node"
    empty = [zone.name for zone in cnr.numa if not zone.allocatable]
    return f"the CustomNodeResource has no allocatable resources of NUMA zone {', '.join(empty)}" if empty else None


def _short(seen: Seen, settings: ReclaimedSettings) -> _Short | None:
    zones = seen.measured.cnr.numa if seen.measured.cnr else ()
    found = [short for zone in zones if (short := _short_zone(zone, seen.active, settings)) is not None]
    hard = [each for each in found if each.threshold.met == "hard"]
    return next(iter(hard or found), None)


def _short_zone(zone: CnrZone, pods: Sequence[KatalystPod], settings: ReclaimedSettings) -> _Short | None:
    asked: dict[str, int] = {}
    for each in pods:
        for resource, amount in (_requests(each, zone) if each.is_reclaimed else {}).items():
            asked[resource] = asked.get(resource, 0) + amount
    exceeded = over(asked, zone.allocatable, settings)
    if exceeded is None:
        return None
    met, resource, limit = exceeded
    grace_s = settings.tolerance_ns // NS_PER_S
    scope = f"zone{zone.name}|{resource}"
    return _Short(Threshold(met, scope, limit, float(asked[resource]), "greater_than", grace_s), zone, resource)


# What the CNR says that a pod has of the zone; of a pod that it does not know there, all of it if the pod is bound.
def _requests(each: KatalystPod, zone: CnrZone) -> Requests:
    pod = each.pod
    allocated = zone.allocations.get(f"{pod.namespace}/{pod.name}/{pod.uid}")
    if allocated is not None:
        return allocated
    return pod.terms.katalyst_requests if pod.terms.annotations.get(NUMA_BIND_RESULT) == zone.name else {}
