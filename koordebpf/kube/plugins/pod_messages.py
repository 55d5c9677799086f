"""The Pods that plugins are given: as the API server has them, read again by a thread where they have changed."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterable
from typing import Final

from koordebpf.errors import DecodeError, KubeError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.http.transport import Transport
from koordebpf.kube.plugins.pods import pod_bytes, pods_of_list

log = logging.getLogger(__name__)

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_ANSWER_S: Final = 5.0
_REST_S: Final = 5.0  # Why: as often as plugins are called; a node whose pods change all the time asks no more often
_CLOSE_S: Final = 1.0


class PodMessages:
    """Each pod as protobuf: from a list of the API server, or what the agent keeps of it where that does not have it.

    Args:
        transport: to the API server, closed with this; None: only what the agent keeps is known.
        node_name: of this node.
        rest_s: between two lists.
    """

    def __init__(self, transport: Transport | None, node_name: str, rest_s: float = _REST_S) -> None:
        self.problem: str | None = None  # why the last list was not read
        self._transport = transport
        self._query = {"fieldSelector": f"spec.nodeName={node_name}", "resourceVersion": "0"}
        self._rest_s = rest_s
        self._listed: dict[str, bytes] = {}  # replaced as a whole
        self._version = 0  # of the cluster's state, as of the last list
        self._wanted = threading.Event()
        self._ends = threading.Event()
        self._supervisor = Supervisor("plugin-pods")
        self._thread: threading.Thread | None = None

    def of(self, pods: Iterable[Pod], version: int) -> dict[str, bytes]:
        """Return the pods by UID, and let the list be read again where the cluster's state has another version.

        Does not wait: what has changed since the last list is in the next one.
        """
        if self._transport is not None and version != self._version:
            self._version = version
            self._wanted.set()
            if self._thread is None:
                self._thread = self._supervisor.thread(functools.partial(self._run, self._transport))
                self._thread.start()
        listed = self._listed
        return {pod.uid: listed.get(pod.uid) or pod_bytes(pod) for pod in pods}

    def close(self) -> None:
        """End the thread, and a request that it waits for."""
        self._ends.set()
        self._wanted.set()
        if self._transport is not None:
            self._transport.close()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _run(self, transport: Transport) -> None:
        while not self._ends.is_set():
            self._wanted.wait()
            self._wanted.clear()
            if self._ends.is_set():
                return
            if not self._supervisor.call(functools.partial(self._read, transport)):
                self.problem = self._supervisor.problem
                self._wanted.set()
            self._ends.wait(self._rest_s)

    def _read(self, transport: Transport) -> None:
        problem = None
        try:
            self._listed = pods_of_list(self._list(transport))
        except (KubeError, DecodeError) as error:
            problem = str(error)
            self._wanted.set()
        if problem not in (None, self.problem):
            log.warning("plugins are given only what the agent keeps of new pods: %s", problem)
        self.problem = problem

    def _list(self, transport: Transport) -> bytes:
        return transport.get(
            "/api/v1/pods", self._query, verb="list", resource="pods", timeout_s=_ANSWER_S, accept=PROTOBUF
        )
