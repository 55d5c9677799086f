"""Keeps the taints of Katalyst's conditions on the node's CustomNodeResource."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from koordebpf.act.taint.worker import AGAIN_S, TIMEOUT_S, NodeWorker

Taints = frozenset[tuple[str, str, str]]  # key, effect and QoS level


class TaintsCnr(Protocol):
    """The calls that are made; `kube.clients.cnr_taints.CnrTaints` has them."""

    node_name: str

    def set_to(self, wanted: Taints, *, at: datetime, timeout_s: float) -> bool:
        """Return whether the CustomNodeResource had to be changed."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class CnrTainter(NodeWorker[Taints]):
    """Keeps the taints of Katalyst's conditions on the CustomNodeResource. Without one there is nothing to remove."""

    again_s = AGAIN_S

    def __init__(self, taints: TaintsCnr) -> None:
        self._taints = taints
        super().__init__("katalyst-cnr-taints", frozenset(), taints.close)

    def make(self, wish: Taints, at: datetime) -> bool:
        """As `NodeWorker.make`."""
        return self._taints.set_to(wish, at=at, timeout_s=TIMEOUT_S)

    def doing(self, wish: Taints) -> str:
        """As `NodeWorker.doing`."""
        return f"CustomNodeResource {self._taints.node_name} cannot be given the taints {_named(wish)}"

    def done(self, wish: Taints, *, is_first: bool) -> str:
        """As `NodeWorker.done`."""
        return f"CustomNodeResource {self._taints.node_name} has the taints {_named(wish)} of Katalyst's conditions"

    def left(self) -> str:
        """As `NodeWorker.left`."""
        return f"CustomNodeResource {self._taints.node_name} may keep taints until an agent starts there"


def _named(taints: Taints) -> str:
    return ", ".join(f"{key}:{effect} for {level}" for key, effect, level in sorted(taints)) or "(none)"
