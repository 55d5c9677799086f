"""Soft eviction of pods whose NIC is unhealthy: without bandwidth in the CNR, or without a link. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/network/network.go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from koordebpf.policy.katalyst.plugin import NO_CNR, Grace, InnerPlugin, Looked, Seen
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.state.katalyst.measured import CnrZone, EvictAsked
from koordebpf.state.pods.requests import NET_BANDWIDTH
from koordebpf.units import NS_PER_S, format_ns

NIC_SELECTION_RESULT = "katalyst.kubewharf.io/nic_selection_result"  # of a pod: the name of its NIC


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

    def look(self, seen: Seen, state: NetworkState, settings: NetworkSettings) -> Looked[NetworkState]:
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
            for each in _pods_of(nic, seen):
                evict.setdefault(each.pod.uid, EvictAsked(each.pod.uid, reason, grace_s=settings.grace_seconds))
        return Looked(state=NetworkState(since_ns), evict=tuple(evict.values()))


NETWORK = NetworkPlugin()


def _illness(nic: CnrZone, links: Mapping[str, bool]) -> str | None:
    if not nic.allocatable.get(NET_BANDWIDTH):
        return "no bandwidth in the CustomNodeResource"
    return None if links.get(nic.name, True) else "no link"


# Those to which the CNR gives some of its bandwidth, and those that were bound to it and request some.
def _pods_of(nic: CnrZone, seen: Seen) -> Iterator[KatalystPod]:
    for each in seen.soft:
        allocated, terms = nic.allocations.get(each.consumer, {}), each.pod.terms
        is_bound = terms.annotations.get(NIC_SELECTION_RESULT) == nic.name
        if allocated.get(NET_BANDWIDTH) or (is_bound and terms.katalyst_requests.get(NET_BANDWIDTH)):
            yield each
