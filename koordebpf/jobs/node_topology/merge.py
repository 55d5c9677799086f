"""A NodeResourceTopology as it is, and as it is to be: only managed fields are compared and changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.jobs.node_topology.report import MANAGED, NUMA_RESERVATION_LABEL, Report, Zone, ZoneResource, same_amount
from koordebpf.kube.cache.objects import Node

API_VERSION = "topology.node.k8s.io/v1alpha1"
MANAGED_BY = {"app.kubernetes.io/managed-by": "Koordinator"}  # who reads it looks for koordlet's own value
_ZONE_TYPE = "Node"

Object = dict[str, Any]


def new_topology(report: Report, node: Node) -> Object:
    """Return the whole object for a node that has none; it ends with the Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": "NodeResourceTopology",
        "metadata": {
            "name": node.metadata.name,
            "labels": {**MANAGED_BY, **report.labels},
            "annotations": report.annotations,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "topologyPolicies": [report.policy],
        "zones": [_zone(each, None) for each in report.zones],
    }


def difference(written: Object, report: Report) -> str | None:
    """Return what of an object differs from what it is to say, in words; None: nothing."""
    metadata = _dict(written.get("metadata"))
    if written.get("topologyPolicies") != [report.policy]:
        return "topologyPolicies"
    if (name := differs_in_annotations(_dict(metadata.get("annotations")), report)) is not None:
        return f"annotation {name}"
    if (_dict(metadata.get("labels")).get(NUMA_RESERVATION_LABEL) or None) != report.labels.get(NUMA_RESERVATION_LABEL):
        return f"label {NUMA_RESERVATION_LABEL}"
    there = _list(written.get("zones"))
    if [each.get("name") for each in there] != [each.name for each in report.zones]:
        return "zones"
    for zone, wanted in zip(there, report.zones, strict=True):
        if zone.get("type") != _ZONE_TYPE:
            return f"zone {wanted.name}: type"
        by_name = {each.get("name"): each for each in _list(zone.get("resources"))}
        for resource in wanted.resources:
            if not _same_resource(by_name.get(resource.name), resource):
                return f"zone {wanted.name}: {resource.name}"
    return None


def differs_in_annotations(written: Mapping[str, Any], report: Report) -> str | None:
    """Return the name of a managed annotation that says something else than it is to say; None: there is none."""
    differing = (name for name, said in report.annotations.items() if not _same_json(written.get(name), said))
    return next(differing, None)


def merged(written: Object, report: Report) -> Object:
    """Return an object as it is, but for the managed fields; what others put into zones that stay is kept."""
    metadata = _dict(written.get("metadata"))
    labels = {name: value for name, value in _dict(metadata.get("labels")).items() if name != NUMA_RESERVATION_LABEL}
    annotations = {**_dict(metadata.get("annotations")), **report.annotations}
    before = {each.get("name"): each for each in _list(written.get("zones"))}
    return {
        **written,
        "metadata": {**metadata, "labels": {**labels, **report.labels}, "annotations": annotations},
        "topologyPolicies": [report.policy],
        "zones": [_zone(each, before.get(each.name)) for each in report.zones],
    }


def _zone(zone: Zone, before: Object | None) -> Object:
    foreign = [each for each in _list((before or {}).get("resources")) if each.get("name") not in MANAGED]
    resources = [*(_resource(each) for each in zone.resources), *foreign]
    return {
        **(before or {}),
        "name": zone.name,
        "type": _ZONE_TYPE,
        "resources": sorted(resources, key=lambda each: str(each.get("name"))),
    }


def _resource(each: ZoneResource) -> Object:
    return {
        "name": each.name,
        "capacity": each.capacity,
        "allocatable": each.allocatable,
        "available": each.allocatable,
    }


def _same_resource(written: Object | None, wanted: ZoneResource) -> bool:
    amounts = {name: value for name, value in _resource(wanted).items() if name != "name"}
    return written is not None and all(same_amount(wanted.name, written.get(n), value) for n, value in amounts.items())


# Order of keys and blanks say nothing.
def _same_json(one: str | None, other: str | None) -> bool:
    if one == other:
        return True
    if one is None or other is None:
        return False
    try:
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    except (msgspec.DecodeError, RecursionError):
        return False


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
