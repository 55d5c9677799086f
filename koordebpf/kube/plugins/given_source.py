"""The pods that a Katalyst agent last asked this plugin about, as a source: the plugin needs no API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from koordebpf.errors import DecodeError
from koordebpf.kube.cache.objects import ClusterState, Pod
from koordebpf.kube.plugins.given_pods import given_pod

_MOST_PODS = 2000  # Why: four times what a kubelet may run


class GivenPods:
    """A source that is given its pods with each request. A pod that cannot be read is left out, with a sentence."""

    name = "plugin"

    def __init__(self) -> None:
        self._known: dict[bytes, Pod | str] = {}  # of the last request; a sentence: why it cannot be read
        self._state = ClusterState(version=0, synced_at_ns=0)

    def take(self, pods: Sequence[bytes]) -> tuple[str | None, ...]:
        """Take the pods of a request for all that there are; return the UID of each, None: it cannot be read.

        None at all say nothing: older agents ask about thresholds without any.

        Raises:  DecodeError: there are too many.
        """
        known = self._read(pods)
        if pods:
            is_news = known.keys() != self._known.keys()
            self._known = known
            found = tuple(each for each in known.values() if isinstance(each, Pod))
            problems = tuple(each for each in known.values() if isinstance(each, str))
            version = self._state.version + (is_news or not self._state.version)
            self._state = ClusterState(version, time.monotonic_ns(), found, problems=problems)
        return self._uids(pods, known)

    def uids(self, pods: Sequence[bytes]) -> tuple[str | None, ...]:
        """Return the UID of each pod of a request that is about some of them.

        Raises:  DecodeError: there are too many.
        """
        return self._uids(pods, self._read(pods))

    def start(self, wake: Callable[[], None]) -> None:
        """Wait for the first request."""

    def refresh(self, now_ns: int) -> None:
        """Keep what the last request said."""

    def nudge(self) -> None:
        """Wait for the next request."""

    def state(self) -> ClusterState:
        """Return the pods of the last request."""
        return self._state

    def close(self) -> None:
        """There is nothing to close."""

    def _read(self, pods: Sequence[bytes]) -> dict[bytes, Pod | str]:
        if len(pods) > _MOST_PODS:
            raise DecodeError(f"{len(pods)} pods are more than {_MOST_PODS}")
        return {data: self._known.get(data) or _pod_or_problem(data) for data in pods}

    def _uids(self, pods: Sequence[bytes], known: dict[bytes, Pod | str]) -> tuple[str | None, ...]:
        found = [known[data] for data in pods]
        return tuple(each.uid if isinstance(each, Pod) else None for each in found)


def _pod_or_problem(data: bytes) -> Pod | str:
    try:
        return given_pod(data)
    except DecodeError as error:
        return f"a pod of the agent cannot be read: {error}"
