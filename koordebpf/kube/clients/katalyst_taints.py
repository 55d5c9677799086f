"""Taints on this node's Node object for the conditions of Katalyst's plugins, and their removal.

Which taints are the agent's is on the Node itself, in an annotation that is written in the same request: another
component's taints, with Katalyst's prefix too, stay as they are. It sends once and never retries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from koordebpf.kube.clients.taints import NodeTaints
from koordebpf.kube.http.transport import Transport

Taint = tuple[str, str]  # key and effect

OWNED: Final = "koordebpf.io/katalyst-taints"  # key:effect, separated by commas


class KatalystTaints(NodeTaints):
    """The taints of one Node that stand for conditions.

    Args:
        transport: to the API server.
        node_name: metadata.name of the Node.
        prefix: no taint whose key does not begin with it is ever the agent's.
    """

    def __init__(self, transport: Transport, node_name: str, prefix: str) -> None:
        super().__init__(transport, node_name)
        self._prefix = prefix

    def set_to(self, wanted: Collection[Taint], *, timeout_s: float) -> bool:
        """Return whether the Node had to be changed; afterwards it has these taints, and no other of the agent's.

        One that is there already and is another component's stays that one's.
        """
        node = self._read(timeout_s)
        taints, annotations = node.spec.taints or [], node.metadata.annotations or {}
        there = {(str(each.get("key")), str(each.get("effect"))) for each in taints}
        owned = self._owned(annotations) & there
        added = sorted(set(wanted) - there)
        removed = owned - set(wanted)
        kept = [each for each in taints if (each.get("key"), each.get("effect")) not in removed]
        now_owned = sorted((owned - removed) | set(added))
        text = ",".join(f"{key}:{effect}" for key, effect in now_owned) or None
        if not added and not removed and text == annotations.get(OWNED):
            return False
        after = [*kept, *({"key": key, "effect": effect} for key, effect in added)]
        self._write_taints(node, after, timeout_s, {OWNED: text})
        return True

    # Whatever else the annotation holds is no taint of the agent's.
    def _owned(self, annotations: Mapping[str, str]) -> set[Taint]:
        pairs = (each.rpartition(":") for each in annotations.get(OWNED, "").split(","))
        return {(key, effect) for key, _, effect in pairs if key.startswith(self._prefix)}
