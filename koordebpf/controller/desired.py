"""The NodeSLO object that a Node should have. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from koordebpf.controller.settings import Settings
from koordebpf.kube.clients.nodeslos import NodeMeta, NodeSLO, NodeSLOMeta, Owner
from koordebpf.slo.manager.effective import effective_spec

if TYPE_CHECKING:
    from koordebpf.kube.colocation.writes import WrittenMetric

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "koordebpf-controller"


def is_ours(obj: NodeSLO | WrittenMetric) -> bool:
    """Tell whether this controller made the object; koord-manager's have no such label."""
    return (obj.metadata.labels or {}).get(MANAGED_BY) == OURS


def owned_by(node: NodeMeta, current: NodeSLOMeta | None) -> NodeSLOMeta:
    """Return the metadata of a Node's object, made from `current` so that others' labels and annotations stay.

    It is owned by its Node: when that is deleted, garbage collection deletes it, also while no controller runs,
    and a list of Nodes that is wrong can never delete anything.
    """
    meta = current or NodeSLOMeta(name=node.name)
    owner = Owner(apiVersion="v1", kind="Node", name=node.name, uid=node.uid)
    others = tuple(each for each in meta.ownerReferences if each.kind != "Node")
    return msgspec.structs.replace(
        meta, labels={**(meta.labels or {}), MANAGED_BY: OURS}, ownerReferences=(owner, *others)
    )


def desired_nodeslo(node: NodeMeta, current: NodeSLO | None, settings: Settings) -> NodeSLO:
    """Return the object as it should be, made from `current`."""
    has = current.spec if current is not None and isinstance(current.spec, dict) else None
    spec = effective_spec(settings.keys, node.labels or {}, node.annotations, has)
    return NodeSLO(owned_by(node, current.metadata if current else None), spec)
