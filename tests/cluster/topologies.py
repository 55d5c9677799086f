"""The definition of NodeResourceTopology on a cluster of the tests, as it comes with Koordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from koordebpf.jobs.node_topology.merge import API_VERSION
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import defined_by

_TEXT: Object = {"type": "string"}
_QUANTITY: Object = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}


def _list(required: tuple[str, ...], **properties: Object) -> Object:
    return {"type": "array", "items": {"type": "object", "required": list(required), "properties": properties}}


def definition() -> Object:
    """Return v1alpha1 as its Go types have it."""
    group, version = API_VERSION.split("/")
    resources = _list(
        ("allocatable", "available", "capacity", "name"),
        name=_TEXT,
        allocatable=_QUANTITY,
        available=_QUANTITY,
        capacity=_QUANTITY,
    )
    zones = _list(
        ("name", "type"),
        name=_TEXT,
        type=_TEXT,
        parent=_TEXT,
        costs=_list(("name", "value"), name=_TEXT, value={"type": "integer", "format": "int64"}),
        attributes=_list(("name", "value"), name=_TEXT, value=_TEXT),
        resources=resources,
    )
    schema = {
        "type": "object",
        "required": ["topologyPolicies", "zones"],
        "properties": {"topologyPolicies": {"type": "array", "items": _TEXT}, "zones": zones},
    }
    names = {"plural": "noderesourcetopologies", "singular": "noderesourcetopology", "kind": "NodeResourceTopology"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"noderesourcetopologies.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
        },
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": names,
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def topology_of(name: str) -> Object:
    """Return what names the object of a node."""
    return {"apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": {"name": name}}


@contextlib.contextmanager
def defined(cluster: ControlPlane) -> Iterator[None]:
    """Define it for as long as the block lasts."""
    with defined_by(cluster.api, definition()):
        yield
