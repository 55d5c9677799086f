"""Katalyst's definition of CustomNodeResource on a cluster of the tests: the fields that an agent reads and writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from koordebpf.kube.cache.cnr import CNR_VERSION
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import defined_by

_ANY: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT: Object = {"type": "string"}


def definition(*, taints_have_levels: bool = True) -> Object:
    """Return the definition as its Go type has it: `taints` is a list without keys. Older ones lack levels."""
    group, version = CNR_VERSION.split("/")
    taint: dict[str, Any] = {
        "type": "object",
        "required": ["key", "effect"],
        "properties": {
            "key": _TEXT,
            "value": _TEXT,
            "effect": _TEXT,
            "timeAdded": {"type": "string", "format": "date-time"},
        },
    }
    if taints_have_levels:
        levels = ["reclaimed_cores", "shared_cores", "dedicated_cores", "system_cores"]
        taint["properties"]["qosLevel"] = {"type": "string", "enum": levels}
        taint["required"].append("qosLevel")
    spec = {"type": "object", "properties": {"taints": {"type": "array", "items": taint}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"customnoderesources.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {
                "plural": "customnoderesources",
                "singular": "customnoderesource",
                "kind": "CustomNodeResource",
                "shortNames": ["kcnr"],
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": _ANY}}},
                }
            ],
        },
    }


def cnr(name: str, *taints: Object) -> Object:
    """Return a CustomNodeResource without a status."""
    made = {"apiVersion": CNR_VERSION, "kind": "CustomNodeResource", "metadata": {"name": name}}
    return made | ({"spec": {"taints": list(taints)}} if taints else {})


@contextlib.contextmanager
def defined(cluster: ControlPlane, **options: bool) -> Iterator[None]:
    """Serve CustomNodeResources; afterwards they are gone."""
    with defined_by(cluster.api, definition(**options)):
        yield
