"""What every source of pods and configuration offers the agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from koordebpf.kube.cache.objects import ClusterState


class Source(Protocol):
    """Where the agent learns of this node's pods, its Node and its NodeSLO.

    `state()` is one immutable value: version 0 and synced_at_ns 0 mean that nothing is known yet.
    """

    @property
    def name(self) -> str:
        """`file`, `kubelet` or `api`."""
        ...

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to learn; `wake` is called, from any thread, after the state changed.

        Raises:  ConfigError: what this source reads first is unusable.
        """
        ...

    def refresh(self, now_ns: int) -> None:
        """Look again where the source has no thread of its own; does nothing elsewhere.

        Cost:    microseconds while nothing changed.
        """
        ...

    def nudge(self) -> None:
        """Note a new pod here: a source that polls asks at once, the others know anyway."""
        ...

    def state(self) -> ClusterState:
        """Return what is known now."""
        ...

    def close(self) -> None:
        """End all threads within a second, also while a request hangs."""
        ...
