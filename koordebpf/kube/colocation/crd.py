"""The CustomResourceDefinition of NodeMetric, for a cluster without Koordinator.

Source: koordinator config/crd/bases/slo.koordinator.sh_nodemetrics.yaml.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

GROUP: Final = "slo.koordinator.sh"
_PRESERVE: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SECONDS: Final = {"type": "integer", "format": "int64", "minimum": 1}
_COLUMNS: Final = (
    ("Update", ".status.updateTime"),
    ("Cpu", ".status.nodeMetric.nodeUsage.resources.cpu"),
    ("Memory", ".status.nodeMetric.nodeUsage.resources.memory"),
)


def node_metric_crd() -> dict[str, Any]:
    """Return the CRD, cluster scoped, as Koordinator's: group slo.koordinator.sh, version v1alpha1, with a status.

    What the controller writes is typed; the status is the agent's, and whatever fields it has are kept.
    """
    policy = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "aggregateDurationSeconds": dict(_SECONDS),
            "reportIntervalSeconds": dict(_SECONDS),
            "nodeAggregatePolicy": {
                "type": "object",
                "properties": {"durations": {"type": "array", "items": {"type": "string"}}},
            },
            "nodeMemoryCollectPolicy": {
                "type": "string",
                "enum": ["usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"],
            },
        },
    }
    status = {**_PRESERVE, "properties": {"updateTime": {"type": "string", "format": "date-time"}}}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": "What a node uses; asked for by the controller, reported by the node's agent.",
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": {**_PRESERVE, "properties": {"metricCollectPolicy": policy}},
                    "status": status,
                },
            }
        },
        "additionalPrinterColumns": [
            {"name": name, "type": "date" if name == "Update" else "string", "jsonPath": path}
            for name, path in _COLUMNS
        ],
        "subresources": {"status": {}},
    }
    names = {"kind": "NodeMetric", "listKind": "NodeMetricList", "plural": "nodemetrics", "singular": "nodemetric"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"nodemetrics.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Cluster", "versions": [version]},
    }


def node_metric_crd_json() -> bytes:
    """Return the CRD as JSON text, which is YAML too."""
    return msgspec.json.format(msgspec.json.encode(node_metric_crd()), indent=2)
