"""The CustomResourceDefinition of NodeMetric, for a cluster without Koordinator.

Source: koordinator config/crd/bases/slo.koordinator.sh_nodemetrics.yaml.
"""

from __future__ import annotations

from typing import Any, Final

from koordebpf.slo.manager.crd import PRESERVE, node_crd

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
    status = {**PRESERVE, "properties": {"updateTime": {"type": "string", "format": "date-time"}}}
    columns = [
        {"name": name, "type": "date" if name == "Update" else "string", "jsonPath": path} for name, path in _COLUMNS
    ]
    description = "What a node uses; asked for by the controller, reported by the node's agent."
    spec = {**PRESERVE, "properties": {"metricCollectPolicy": policy}}
    return node_crd("NodeMetric", description, spec, status, columns)
