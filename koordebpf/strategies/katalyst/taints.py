"""Taints on this node's Node object for the conditions of Katalyst's plugins, and their removal.

Which taints are the agent's is on the Node itself, in an annotation that is written in the same request: another
component's taints, with Katalyst's prefix too, stay as they are. It sends once and never retries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, Protocol

from koordebpf.act.taint import TIMEOUT_S, NodeWorker
from koordebpf.kube.clients.taints import NodeTaints
from koordebpf.kube.http.transport import Transport

Taint = tuple[str, str]  # key and effect
Taints = frozenset[Taint]
CnrTaints = frozenset[tuple[str, str, str]]  # key, effect and QoS level
AGAIN_S = 60.0  # Why: a request a minute, while there are taints that another component may have overwritten
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


# What keeps the taints of conditions on the Node and on the CustomNodeResource, each in a thread.


class TaintsNode(Protocol):
    """The calls that are made; `strategies.katalyst.taints.KatalystTaints` has them."""

    node_name: str

    def set_to(self, wanted: Taints, *, timeout_s: float) -> bool:
        """Return whether the Node had to be changed."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class Tainter(NodeWorker[Taints]):
    """Keeps the taints of Katalyst's conditions on the node."""

    again_s = AGAIN_S

    def __init__(self, taints: TaintsNode) -> None:
        self._taints = taints
        super().__init__("katalyst-taints", frozenset(), taints.close)

    def make(self, wish: Taints, at: datetime) -> bool:
        """As `NodeWorker.make`."""
        return self._taints.set_to(wish, timeout_s=TIMEOUT_S)

    def doing(self, wish: Taints) -> str:
        """As `NodeWorker.doing`."""
        return f"node {self._taints.node_name} cannot be given the taints {_named(wish)}"

    def done(self, wish: Taints, *, is_first: bool) -> str:
        """As `NodeWorker.done`."""
        return f"node {self._taints.node_name} has the taints {_named(wish)} of Katalyst's conditions"

    def left(self) -> str:
        """As `NodeWorker.left`."""
        return f"node {self._taints.node_name} may keep taints of Katalyst's conditions until an agent starts there"


def _named(taints: Taints) -> str:
    return ", ".join(f"{key}:{effect}" for key, effect in sorted(taints)) or "(none)"


class TaintsCnr(Protocol):
    """The calls that are made; `kube.clients.cnr_taints.CnrTaints` has them."""

    node_name: str

    def set_to(self, wanted: CnrTaints, *, at: datetime, timeout_s: float) -> bool:
        """Return whether the CustomNodeResource had to be changed."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class CnrTainter(NodeWorker[CnrTaints]):
    """Keeps the taints of Katalyst's conditions on the CustomNodeResource. Without one there is nothing to remove."""

    again_s = AGAIN_S

    def __init__(self, taints: TaintsCnr) -> None:
        self._taints = taints
        super().__init__("katalyst-cnr-taints", frozenset(), taints.close)

    def make(self, wish: CnrTaints, at: datetime) -> bool:
        """As `NodeWorker.make`."""
        return self._taints.set_to(wish, at=at, timeout_s=TIMEOUT_S)

    def doing(self, wish: CnrTaints) -> str:
        """As `NodeWorker.doing`."""
        return f"CustomNodeResource {self._taints.node_name} cannot be given the taints {_named_of_cnr(wish)}"

    def done(self, wish: CnrTaints, *, is_first: bool) -> str:
        """As `NodeWorker.done`."""
        return (
            f"CustomNodeResource {self._taints.node_name} has the taints {_named_of_cnr(wish)} of Katalyst's conditions"
        )

    def left(self) -> str:
        """As `NodeWorker.left`."""
        return f"CustomNodeResource {self._taints.node_name} may keep taints until an agent starts there"


def _named_of_cnr(taints: CnrTaints) -> str:
    return ", ".join(f"{key}:{effect} for {level}" for key, effect, level in sorted(taints)) or "(none)"
