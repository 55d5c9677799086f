"""Marks on this node's Node object that say that koordebpf evicts there: a taint or a condition, and their removal.

It sends once and never retries. What others wrote on the Node stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.kube.body import MALFORMED, malformed
from koordebpf.kube.http.transport import Transport

TAINT_KEY: Final = "koordebpf.io/memory-pressure"
TAINT_EFFECT: Final = "NoSchedule"
CONDITION_TYPE: Final = "KoordebpfEvicting"
_REASON: Final = "MemoryEviction"
_MESSAGE: Final = "koordebpf evicts pods of this node to give memory back"

Mark = Literal["condition", "taint"]


class _Meta(msgspec.Struct, frozen=True):
    resourceVersion: str
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True):
    taints: list[dict[str, Any]] | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def is_tainted(self) -> bool:
        return any(map(_is_ours, self.spec.taints or ()))

    @property
    def has_condition(self) -> bool:
        return any(condition.type == CONDITION_TYPE for condition in self.status.conditions or ())


_DECODER = decoder(_Node)


class NodeTaints:
    """The taints of one Node, read and written as a whole. Owns `transport` and closes it.

    Needs:   RBAC get and patch on nodes.
    Raises:  KubeError and its kin, each of the requests. KubeConflict: another changed the Node meanwhile; nothing was
             written, and the next call begins with a fresh look.
    """

    def __init__(self, transport: Transport, node_name: str) -> None:
        self._transport = transport
        self.node_name = node_name
        self._path = f"/api/v1/nodes/{quote(node_name, safe='')}"

    def close(self) -> None:
        """Cut the connection; requests that wait fail at once."""
        self._transport.close()

    def _read(self, timeout_s: float) -> _Node:
        body = self._transport.get(self._path, verb="get", resource="nodes", timeout_s=timeout_s)
        try:
            return _DECODER.decode(body)
        except MALFORMED as e:
            raise malformed("nodes", "the answer is not a Node", e) from e

    # A patch replaces the whole list of taints, which has no merge key (core/v1 NodeSpec). With the resourceVersion of
    # the list it was made from, the server takes it only where the Node has not changed. None removes an annotation.
    def _write_taints(
        self,
        node: _Node,
        taints: list[dict[str, Any]],
        timeout_s: float,
        annotations: Mapping[str, str | None] | None = None,
    ) -> None:
        metadata: dict[str, Any] = {"resourceVersion": node.metadata.resourceVersion}
        if annotations is not None:
            metadata["annotations"] = annotations
        change = {"metadata": metadata, "spec": {"taints": taints or None}}
        self._transport.patch(self._path, msgspec.json.encode(change), resource="nodes", timeout_s=timeout_s)


class NodeMarks(NodeTaints):
    """The marks of one Node; a condition needs RBAC patch on nodes/status, too."""

    def put(self, mark: Mark, *, at: datetime, timeout_s: float) -> bool:
        """Return whether the mark had to be written; afterwards it is there."""
        node = self._read(timeout_s)
        if mark == "taint":
            if node.is_tainted:
                return False
            ours = {"key": TAINT_KEY, "effect": TAINT_EFFECT}
            self._write_taints(node, [*(node.spec.taints or ()), ours], timeout_s)
            return True
        if node.has_condition:
            return False
        now = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        said = {"type": CONDITION_TYPE, "status": "True", "reason": _REASON, "message": _MESSAGE}
        self._write_condition({**said, "lastHeartbeatTime": now, "lastTransitionTime": now}, timeout_s)
        return True

    def remove(self, *, timeout_s: float) -> bool:
        """Return whether a mark of either kind had to be removed; afterwards there is none."""
        node = self._read(timeout_s)
        if node.has_condition:
            self._write_condition({"$patch": "delete", "type": CONDITION_TYPE}, timeout_s)
            # The Node has another resourceVersion now.
            node = self._read(timeout_s) if node.is_tainted else node
            if not node.is_tainted:
                return True
        elif not node.is_tainted:
            return False
        self._write_taints(node, [taint for taint in node.spec.taints or () if not _is_ours(taint)], timeout_s)
        return True

    # Conditions are merged by their type: the kubelet's own are not touched, in any order of writes.
    def _write_condition(self, condition: dict[str, str], timeout_s: float) -> None:
        change = {"status": {"conditions": [condition]}}
        path = f"{self._path}/status"
        self._transport.patch(path, msgspec.json.encode(change), resource="nodes/status", timeout_s=timeout_s)


def _is_ours(taint: dict[str, Any]) -> bool:
    return taint.get("key") == TAINT_KEY and taint.get("effect") == TAINT_EFFECT
