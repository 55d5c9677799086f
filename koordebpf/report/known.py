"""What an agent knows of its node's objects, for commands on the same node: names of pods, QoS and thresholds.

Answered as /known on its Unix socket, which root alone may open.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import parse_qs

import msgspec

from koordebpf.kube.cache.objects import Node, Pod
from koordebpf.store.sink import RoundEnded


class KnownObjects(msgspec.Struct, frozen=True, omit_defaults=True):
    """The Kubernetes objects of a node. `version` is another one when they have changed.

    `pods` null: they are those of the version that was asked with.
    """

    version: str
    pods: tuple[Pod, ...] | None = None
    node: Node | None = None
    nodeSLO: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    sloControllerConfig: dict[str, str] | None = None


class KnownPage:
    """Answers /known, from one thread. `last_round`: called from it."""

    def __init__(self, last_round: Callable[[], RoundEnded | None]) -> None:
        self._last_round = last_round
        self._run = secrets.token_hex(4)
        self._changes = 0
        self._seen: tuple[object, ...] | None = None

    def answer(self, query: str) -> KnownObjects:
        """Return the objects; those that `?version=` had already are not sent again."""
        ended = self._last_round()
        if ended is None:
            return KnownObjects(version=f"{self._run}-0", pods=())
        frame = ended.tick.frame
        seen = (frame.pods, frame.node, frame.nodeSLO, frame.sloControllerConfig)
        if self._seen is None or any(new is not old for new, old in zip(seen, self._seen, strict=True)):
            self._seen, self._changes = seen, self._changes + 1
        version = f"{self._run}-{self._changes}"
        if parse_qs(query).get("version") == [version]:
            return KnownObjects(version)
        return KnownObjects(version, frame.pods, frame.node, frame.nodeSLO, frame.sloControllerConfig)
