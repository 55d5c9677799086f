"""Taints on this node's CustomNodeResource for the conditions of Katalyst's plugins, and their removal.

By server-side apply. In Katalyst's definition the list `spec.taints` names no keys, so that to the API server it is one
value: who applies one entry applies all. So it is read, the agent's entries are changed in it, and it is applied only
to the version that was read. Which entries are the agent's is in an annotation that is applied with them. It sends once
and never retries.

Source: katalyst-api pkg/apis/node/v1alpha1/types.go, Taint; k8s.io/apimachinery pkg/util/managedfields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeGone
from koordebpf.kube.body import MALFORMED, malformed
from koordebpf.kube.cache.cnr import CNR_PATH, CNR_VERSION
from koordebpf.kube.http.transport import Transport

CnrTaint = tuple[str, str, str]  # key, effect and QoS level

MANAGER: Final = "koordebpf"
OWNED: Final = "koordebpf.io/katalyst-taints"  # key:effect:level, separated by commas


class _Meta(msgspec.Struct, frozen=True):
    uid: str
    resourceVersion: str
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True):
    taints: list[dict[str, Any]] | None = None


class _Cnr(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec | None = None


_DECODER = decoder(_Cnr)


class CnrTaints:
    """The taints of one CustomNodeResource that stand for conditions. Owns `transport` and closes it.

    Needs:   RBAC get and patch on customnoderesources.node.katalyst.kubewharf.io.

    Args:
        transport: to the API server.
        node_name: metadata.name of the CustomNodeResource, which is that of its Node.
        prefix: no taint whose key does not begin with it is ever the agent's.
    """

    def __init__(self, transport: Transport, node_name: str, prefix: str) -> None:
        self._transport = transport
        self.node_name = node_name
        self._prefix = prefix
        self._path = f"{CNR_PATH}/{quote(node_name, safe='')}"

    def close(self) -> None:
        """Cut the connection; requests that wait fail at once."""
        self._transport.close()

    def set_to(self, wanted: Collection[CnrTaint], *, at: datetime, timeout_s: float) -> bool:
        """Return whether the object had to be changed; afterwards it has these taints, and no other of the agent's.

        One that is there already and is another component's stays that one's. Where there is no object, or no
        definition of it, there is nothing to remove.

        Raises:  KubeError and its kin. KubeGone: taints are wanted of an object that is not there. KubeConflict:
                 another wrote meanwhile; nothing was written, and the next call begins with a fresh look. KubeError:
                 the definition is an older one, without a QoS level of taints.
        """
        try:
            found = self._read(timeout_s)
        except KubeGone:
            if wanted:
                raise
            return False
        taints, annotations = (found.spec or _Spec()).taints or [], found.metadata.annotations or {}
        there = {_identity(each) for each in taints}
        owned = self._owned(annotations) & there
        added, removed = sorted(set(wanted) - there), owned - set(wanted)
        now_owned = sorted((owned - removed) | set(added))
        text = ",".join(map(":".join, now_owned))
        if not added and not removed and (text or None) == annotations.get(OWNED):
            return False
        time = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        after = [each for each in taints if _identity(each) not in removed]
        after += [_taint(each, time) for each in added]
        applied = self._apply(found.metadata, {"annotations": {OWNED: text}}, after, timeout_s)
        if not text:
            # What was applied and is left out now is removed. The list stays in it, with the entries of others: left
            # out it would go with them, or leave `spec` as null, which the definition does not take.
            self._apply(applied.metadata, {}, after, timeout_s)
        return True

    def _read(self, timeout_s: float) -> _Cnr:
        body = self._transport.get(self._path, verb="get", resource="customnoderesources", timeout_s=timeout_s)
        return _decode(body)

    # The UID keeps it from being made where it was deleted meanwhile, and the version from a list that has changed.
    def _apply(self, of: _Meta, metadata: Mapping[str, Any], taints: list[dict[str, Any]], timeout_s: float) -> _Cnr:
        named = {"name": self.node_name, "uid": of.uid, "resourceVersion": of.resourceVersion, **metadata}
        change = {"apiVersion": CNR_VERSION, "kind": "CustomNodeResource", "metadata": named}
        body = msgspec.json.encode({**change, "spec": {"taints": taints}})
        answer = self._transport.apply(
            self._path, body, manager=MANAGER, resource="customnoderesources", timeout_s=timeout_s
        )
        return _decode(answer)

    # Whatever else the annotation holds is no taint of the agent's.
    def _owned(self, annotations: Mapping[str, str]) -> set[CnrTaint]:
        parts = (each.split(":") for each in annotations.get(OWNED, "").split(","))
        return {(each[0], each[1], each[2]) for each in parts if len(each) == 3 and each[0].startswith(self._prefix)}


def _identity(taint: Mapping[str, Any]) -> CnrTaint:
    return str(taint.get("key")), str(taint.get("effect")), str(taint.get("qosLevel"))


def _taint(wanted: CnrTaint, time: str) -> dict[str, str]:
    key, effect, level = wanted
    return {"key": key, "effect": effect, "timeAdded": time, "qosLevel": level}


def _decode(body: bytes) -> _Cnr:
    try:
        return _DECODER.decode(body)
    except MALFORMED as e:
        raise malformed("customnoderesources", "the answer is not a CustomNodeResource", e) from e
