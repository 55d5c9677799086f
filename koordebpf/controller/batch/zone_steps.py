"""Batch resources of NUMA zones, in the NodeResourceTopology of a Node: when they are to be written, and how.

Source: koordinator pkg/slo-controller/noderesource/plugins/util/util.go, UpdateNRTZoneListIfNeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordebpf.controller.batch.calculations import Computed
from koordebpf.policy.batch.sync import sync_reason
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY
from koordebpf.units import NS_PER_S

_FIELDS = ("capacity", "allocatable", "available")


def wanted_zones(computed: Computed) -> dict[str, int]:
    """Return zone/resource → what it should have; of a Node that is reset nothing of what there is.

    As Koordinator: a zone's entry is set to zero, and not removed.
    """
    topology = computed.topology
    if topology is None or not topology.zones:
        return {}
    if computed.result.reset:
        return {key: 0 for key, amount in topology.batch.items() if amount}
    return {
        key: amount
        for zone, both in computed.result.zones.items()
        for key, amount in ((f"{zone}/{BATCH_CPU}", both.cpu_millicpu), (f"{zone}/{BATCH_MEMORY}", both.memory_bytes))
    }


def zone_reason(computed: Computed, since_ns: int | None) -> str:
    """Return why the topology has to be written; "": it need not."""
    wanted = wanted_zones(computed)
    if not wanted or computed.topology is None:
        return ""
    strategy = computed.strategy
    at_most_ns = strategy.updateTimeThresholdSeconds * NS_PER_S
    return sync_reason(computed.topology.batch, wanted, strategy.resourceDiffThreshold, since_ns, at_most_ns)


def with_zones(topology: dict[str, Any], wanted: Mapping[str, int]) -> dict[str, Any]:
    """Return a NodeResourceTopology, as decoded from JSON, with these amounts; whatever else it has stays.

    A zone that is not there is passed over, and what is no list of objects is left as it is.
    """
    zones = topology.get("zones")
    return {**topology, "zones": [_zone(zone, wanted) for zone in zones]} if isinstance(zones, list) else topology


def _zone(zone: Any, wanted: Mapping[str, int]) -> Any:
    if not isinstance(zone, dict):
        return zone
    amounts = {name: wanted.get(f"{zone.get('name')}/{name}") for name in (BATCH_CPU, BATCH_MEMORY)}
    made = {name: str(amount) for name, amount in amounts.items() if amount is not None}
    there = zone.get("resources")
    resources = [each for each in there if isinstance(each, dict)] if isinstance(there, list) else []
    kept = [each for each in resources if each.get("name") not in made]
    kept += [{"name": name, **dict.fromkeys(_FIELDS, amount)} for name, amount in made.items()]
    return {**zone, "resources": sorted(kept, key=lambda each: str(each.get("name")))} if made else zone
