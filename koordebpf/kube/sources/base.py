"""What every source of pods and configuration offers the agent, and two sources as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from koordebpf.kube.cache.objects import ClusterState


class MergedSource:
    """Pods of `pods`, everything else of `rest`. Synced as long ago as `pods` is."""

    def __init__(self, pods: Source, rest: Source) -> None:
        self._pods = pods
        self._rest = rest

    @property
    def name(self) -> str:
        """The name of the pods' source."""
        return self._pods.name

    def start(self, wake: Callable[[], None]) -> None:
        """Start both; `rest` first, whose errors end the start."""
        self._rest.start(wake)
        self._pods.start(wake)

    def refresh(self, now_ns: int) -> None:
        """Let both look again."""
        self._pods.refresh(now_ns)
        self._rest.refresh(now_ns)

    def nudge(self) -> None:
        """Tell the pods' source that there is a new pod."""
        self._pods.nudge()

    def state(self) -> ClusterState:
        """Return both as one; the version grows with either. Nothing is known before the pods are."""
        pods, rest = self._pods.state(), self._rest.state()
        return ClusterState(
            version=pods.version and pods.version + rest.version,
            synced_at_ns=pods.synced_at_ns,
            pods=pods.pods,
            node=rest.node,
            nodeslo=rest.nodeslo,
            slo_controller_config=rest.slo_controller_config,
            pdbs=rest.pdbs,
            topology=rest.topology,
            cnr=rest.cnr,
            namespaces=rest.namespaces,
            namespaces_since_ns=rest.namespaces_since_ns,
            problems=(*pods.problems, *rest.problems),
        )

    def close(self) -> None:
        """Close both."""
        self._pods.close()
        self._rest.close()


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
