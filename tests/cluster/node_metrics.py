"""Koordinator's definition of NodeMetric on a cluster of the tests, as its Go types have it, or an older one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from koordebpf.kube.cache.node_metric import NODE_METRIC_VERSION
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import defined_by

_TEXT: Object = {"type": "string"}
_QUANTITY: Object = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
    "x-kubernetes-int-or-string": True,
}


def _object(**properties: Any) -> Object:
    return {"type": "object", "properties": properties}


def _list(items: Object) -> Object:
    return {"type": "array", "items": items}


_USAGE = _object(resources={"type": "object", "additionalProperties": _QUANTITY})
_AGGREGATED = _list(_object(duration=_TEXT, usage={"type": "object", "additionalProperties": _USAGE}))
_RECLAIMABLE = _object(resource=_USAGE)


def definition(*, is_old: bool = False) -> Object:
    """Return the definition; an old one knows neither NUMA nodes nor peaks, nor priority and QoS of pods."""
    group, version = NODE_METRIC_VERSION.split("/")
    node: Object = {
        "nodeUsage": _USAGE,
        "systemUsage": _USAGE,
        "aggregatedNodeUsages": _AGGREGATED,
        "aggregatedSystemUsages": _AGGREGATED,
    }
    pod: Object = {"name": _TEXT, "namespace": _TEXT, "podUsage": _USAGE}
    status: Object = {
        "updateTime": {"type": "string", "format": "date-time"},
        "hostApplicationMetric": _list(_object(name=_TEXT, usage=_USAGE, priority=_TEXT, qos=_TEXT)),
        "prodReclaimableMetric": _RECLAIMABLE,
    }
    if not is_old:
        pod |= {"priority": _TEXT, "qos": _TEXT}
        numa = _object(numaNodeID={"type": "integer", "format": "int32"}, nodeUsage=_USAGE, systemUsage=_USAGE)
        node["numaUsages"] = _list(numa)
        status["prodPeakMetric"] = _RECLAIMABLE
    status |= {"nodeMetric": _object(**node), "podsMetric": _list(_object(**pod))}
    seconds: Object = {"type": "integer", "format": "int64"}
    policy = _object(
        aggregateDurationSeconds=seconds,
        reportIntervalSeconds=seconds,
        nodeAggregatePolicy=_object(durations=_list(_TEXT)),
        nodeMemoryCollectPolicy=_TEXT
        | {"enum": ["usageWithHotPageCache", "usageWithoutPageCache", "usageWithPageCache"]},
    )
    schema = _object(spec=_object(metricCollectPolicy=policy), status=_object(**status))
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"nodemetrics.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {
                "plural": "nodemetrics",
                "singular": "nodemetric",
                "kind": "NodeMetric",
                "listKind": "NodeMetricList",
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def node_metric(name: str, **spec: Any) -> Object:
    """Return a NodeMetric as koord-manager creates one."""
    return {"apiVersion": NODE_METRIC_VERSION, "kind": "NodeMetric", "metadata": {"name": name}, "spec": spec}


@contextlib.contextmanager
def defined(cluster: ControlPlane, *, is_old: bool = False) -> Iterator[None]:
    """Serve NodeMetrics; afterwards they are gone."""
    with defined_by(cluster.api, definition(is_old=is_old)):
        yield
