"""The CustomResourceDefinitions of NodeSLO and NodeMetric. NodeSLO's is made from the types that read it.

Source: koordinator config/crd/bases/slo.koordinator.sh_nodemetrics.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from koordebpf.quantity import MOST_AMOUNT
from koordebpf.slo.spec import NodeSLOSpec

_SECONDS: Final = {"type": "integer", "format": "int64", "minimum": 1}
_COLUMNS: Final = (
    ("Update", ".status.updateTime"),
    ("Cpu", ".status.nodeMetric.nodeUsage.resources.cpu"),
    ("Memory", ".status.nodeMetric.nodeUsage.resources.memory"),
)
GROUP = "slo.koordinator.sh"
PRESERVE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


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


def nodeslo_crd() -> dict[str, Any]:
    """Return the CRD, cluster scoped, as Koordinator's: group slo.koordinator.sh, version v1alpha1, with a status.

    Shape:  structural (no $ref, no type that may be two, but int-or-string). Ranges are those that koordlet needs; of
            resourceUsedThresholdWithBE it judges each feature's values when it uses them, so there are none.
            Fields that a newer Koordinator adds to the spec are kept.
    """
    spec = _schema(inspect.type_info(NodeSLOSpec))
    spec["x-kubernetes-preserve-unknown-fields"] = True
    description = "What a node promises its pods; read by the agent of the node it is named after."
    return node_crd("NodeSLO", description, spec, dict(PRESERVE))


def node_crd(
    kind: str, description: str, spec: dict[str, Any], status: dict[str, Any], columns: Sequence[dict[str, str]] = ()
) -> dict[str, Any]:
    """Return the CRD of one object for each Node, with these schemas; `columns` are additionalPrinterColumns."""
    singular = kind.lower()
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": description,
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec,
                    "status": status,
                },
            }
        },
        **({"additionalPrinterColumns": list(columns)} if columns else {}),
        "subresources": {"status": {}},
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": f"{singular}s", "singular": singular}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Cluster", "versions": [version]},
    }


def _schema(of: inspect.Type) -> dict[str, Any]:
    match of:
        case inspect.UnionType():
            kinds = [each for each in of.types if not isinstance(each, inspect.NoneType)]
            if len(kinds) == 1:
                return _schema(kinds[0])
            if {type(each) for each in kinds} == {inspect.IntType, inspect.StrType}:
                return {"x-kubernetes-int-or-string": True}
            raise TypeError(f"no structural schema says {of}")
        case inspect.StructType():
            properties = {field.encode_name: _schema(field.type) for field in of.fields}
            required = [field.encode_name for field in of.fields if field.required]
            return {"type": "object", "properties": properties, **({"required": required} if required else {})}
        case inspect.VarTupleType():
            return {"type": "array", "items": _schema(of.item_type)}
        case inspect.DictType():
            if isinstance(of.value_type, inspect.AnyType):
                return dict(PRESERVE)
            return {"type": "object", "additionalProperties": _schema(of.value_type)}
        case inspect.LiteralType():
            return {"type": "string", "enum": list(of.values)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.StrType():
            return {"type": "string"}
        case inspect.IntType():
            # Whatever a schema says, the API server takes no integer above it, and keeps a schema's limits as floats.
            most = None if of.le == MOST_AMOUNT else of.le
            limits = {"minimum": of.ge if of.gt is None else of.gt + 1, "maximum": most}
            return {"type": "integer", **{name: limit for name, limit in limits.items() if limit is not None}}
    raise TypeError(f"no structural schema says {of}")


def crd_json(crd: Mapping[str, Any]) -> bytes:
    """Return a CRD as JSON text, which is YAML too."""
    return msgspec.json.format(msgspec.json.encode(crd), indent=2)
