"""Taints on this node's Node object for the conditions of Katalyst's plugins, and their removal.

Which taints are the agent's is on the Node itself, in an annotation that is written in the same request: another
component's taints, with Katalyst's prefix too, stay as they are. It sends once and never retries.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from urllib.parse import quote

import msgspec

from koordebpf.kube.http.transport import Transport
from koordebpf.kube.malformed import MALFORMED, malformed

Taint = tuple[str, str]  # key and effect

OWNED: Final = "koordebpf.io/katalyst-taints"  # key:effect, separated by commas


class _Meta(msgspec.Struct, frozen=True):
    resourceVersion: str
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True):
    taints: list[dict[str, Any]] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _Spec = _Spec()


_DECODER = msgspec.json.Decoder(_Node)


class KatalystTaints:
    """The taints of one Node. Owns `transport` and closes it.

    Needs:   RBAC get and patch on nodes.
    Raises:  KubeError and its kin, each of the requests. KubeConflict: another changed the Node meanwhile; nothing was
             written, and the next call begins with a fresh look.
    """

    def __init__(self, transport: Transport, node_name: str, prefix: str) -> None:
        """Take the connection; no taint whose key does not begin with the prefix is ever the agent's."""
        self._prefix = prefix
        self._transport = transport
        self.node_name = node_name
        self._path = f"/api/v1/nodes/{quote(node_name, safe='')}"

    def set_to(self, wanted: Collection[Taint], *, timeout_s: float) -> bool:
        """Return whether the Node had to be changed; afterwards it has these taints, and no other of the agent's.

        One that is there already and is another component's stays that one's.
        """
        node = self._read(timeout_s)
        taints = node.spec.taints or []
        there = {(str(each.get("key")), str(each.get("effect"))) for each in taints}
        owned = self._owned(node) & there
        added = sorted(set(wanted) - there)
        removed = owned - set(wanted)
        kept = [each for each in taints if (each.get("key"), each.get("effect")) not in removed]
        now_owned = sorted((owned - removed) | set(added))
        text = ",".join(f"{key}:{effect}" for key, effect in now_owned) or None
        if not added and not removed and text == (node.metadata.annotations or {}).get(OWNED):
            return False
        after = [*kept, *({"key": key, "effect": effect} for key, effect in added)]
        # A patch replaces the whole list of taints, which has no merge key (core/v1 NodeSpec).
        change = {
            "metadata": {"resourceVersion": node.metadata.resourceVersion, "annotations": {OWNED: text}},
            "spec": {"taints": after or None},
        }
        self._transport.patch(self._path, msgspec.json.encode(change), resource="nodes", timeout_s=timeout_s)
        return True

    def close(self) -> None:
        """Cut the connection; requests that wait fail at once."""
        self._transport.close()

    # Whatever else the annotation holds is no taint of the agent's.
    def _owned(self, node: _Node) -> set[Taint]:
        text = (node.metadata.annotations or {}).get(OWNED, "")
        pairs = (each.rpartition(":") for each in text.split(","))
        return {(key, effect) for key, _, effect in pairs if key.startswith(self._prefix)}

    def _read(self, timeout_s: float) -> _Node:
        body = self._transport.get(self._path, verb="get", resource="nodes", timeout_s=timeout_s)
        try:
            return _DECODER.decode(body)
        except MALFORMED as e:
            raise malformed("nodes", "the answer is not a Node", e) from e
