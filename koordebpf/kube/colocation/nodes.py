"""Nodes as batch and mid resources need them: with what they have, and who wrote it."""

from __future__ import annotations

from typing import Final

import msgspec

from koordebpf.decoding import decoder
from koordebpf.kube.clients.nodeslos import NodeMeta

_OF_BATCH: Final = (b'"f:kubernetes.io/batch-', b'"f:kubernetes.io/mid-')
# koord-manager's name in managedFields is that of its binary, or of its user agent: koord-manager, koordinator-manager.
_MANAGERS: Final = "koord"
_OURS: Final = "koordebpf"


class ColocationNode(NodeMeta, frozen=True):
    """A Node with its status; quantities stay as written.

    `manager`: a Koordinator manager that wrote batch or mid resources into its status, by managedFields; "": none did.
    """

    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    manager: str = ""


class _ManagedFields(msgspec.Struct, frozen=True):
    manager: str = ""
    fieldsV1: msgspec.Raw = msgspec.Raw(b"")


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    managedFields: list[_ManagedFields] | None = None


class _Status(msgspec.Struct, frozen=True):
    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta
    status: _Status = _Status()


_NODE = decoder(_Node)


def decode_colocation_node(raw: msgspec.Raw | bytes) -> ColocationNode:
    """Decode one Node.

    Raises:  msgspec.DecodeError: a field that is read has another type.
    """
    node = _NODE.decode(raw)
    meta, status = node.metadata, node.status
    manager = next(filter(None, map(_manager, meta.managedFields or ())), "")
    return ColocationNode(
        meta.name, meta.uid, meta.labels, meta.annotations, status.capacity, status.allocatable, manager
    )


def _manager(of: _ManagedFields) -> str:
    if not of.manager.startswith(_MANAGERS) or of.manager.startswith(_OURS):
        return ""
    fields = bytes(of.fieldsV1)
    return of.manager if any(name in fields for name in _OF_BATCH) else ""
