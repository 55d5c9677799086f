"""Which CPUs kubelet bound to pods, asked for through its PodResources socket whenever that may have changed.

Kubelet binds CPUs when it admits a Guaranteed pod and frees them when the pod ends. So it is asked when such a pod, or
a cgroup of one, appears or is removed, and every few minutes besides. A new container is known within a second or two;
kubelet itself takes up to 10 s to move other containers away from its CPUs (cpuManagerReconcilePeriod). What was
answered last stays while kubelet does not answer: CPUs are withheld for longer than needed, never given too early.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

from koordebpf.errors import KubeError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.clients.kubelet import SOCKET, BoundCpus, bound_cpus
from koordebpf.kube.sources.cpu_manager import CpuManagerState
from koordebpf.state.pods.facts import PodFacts

log = logging.getLogger(__name__)

_AGAIN_S = 300.0  # Why: a change without an event
_RETRY_S = 10.0  # Why: a kubelet that is updated is back within it
_APART_S = 5.0  # Why: many pods that start at once are one question


class KubeletCpus:
    """Kubelet's answer, never waited for. Without its socket nothing runs."""

    def __init__(
        self,
        socket: Path = SOCKET,
        ask: Callable[[Path], BoundCpus] = bound_cpus,
        apart_s: float = _APART_S,
    ) -> None:
        """Remember where it is.

        Args:
            socket: kubelet's; there need not be one.
            ask: returns its answer, or raises KubeError.
            apart_s: between two questions at least.
        """
        self._socket = socket
        self._ask = ask
        self._apart_s = apart_s
        self._key: Hashable = None
        self._uids: dict[tuple[str, str], str] = {}
        self._bound: BoundCpus | None = None
        self._problem = ""
        self._due = threading.Event()
        self._closing = threading.Event()
        self._supervisor = Supervisor("kubelet-cpus")
        self._thread: threading.Thread | None = None

    def request(self, pods: Sequence[PodFacts], cgroups: Hashable) -> None:
        """Ask, where the pods that may have CPUs of their own are not those of the last call.

        Args:
            pods: of the node.
            cgroups: of these pods, in whatever form: another value is another set.
        """
        guaranteed = frozenset((pod.uid, pod.phase) for pod in pods if pod.kube_qos == "Guaranteed")
        key = (guaranteed, cgroups)
        if key == self._key:
            return
        self._key = key
        self._uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
        self._due.set()
        if self._thread is None and self._socket.is_socket():
            self._thread = self._supervisor.thread(self._run)
            self._thread.start()

    @property
    def is_awaited(self) -> bool:
        """Tell whether the first question has no answer yet, not even that there is none."""
        return self._thread is not None and self._bound is None and not self._problem

    def read(self) -> CpuManagerState | None:
        """Return kubelet's last answer; None: there is none yet, or no kubelet to ask."""
        bound, uids = self._bound, self._uids
        if bound is None:
            return None
        # A pod that the list does not know yet has its CPUs all the same.
        pinned = {
            uids.get((each.namespace, each.name), f"{each.namespace}/{each.name}"): each.cpus for each in bound.pods
        }
        # Which CPUs other pods may have is not said: those that kubelet reserves are theirs too but under
        # strict-cpu-reservation, and best-effort containers must not be kept from a set that kubelet gives them.
        return CpuManagerState("static" if bound.allocatable else "none", pinned)

    def close(self) -> None:
        """Ask no more. A question that waits for its answer ends by its own time-out."""
        self._closing.set()
        self._due.set()

    def _run(self) -> None:
        wait_s = _AGAIN_S
        while not self._closing.is_set():
            self._due.wait(wait_s)
            self._due.clear()
            if self._closing.is_set():
                return
            is_answered = self._supervisor.call(self._answer) and not self._problem
            wait_s = _AGAIN_S if is_answered else _RETRY_S
            self._closing.wait(self._apart_s)

    def _answer(self) -> None:
        began = time.monotonic()
        try:
            self._bound = self._ask(self._socket)
        except KubeError as error:
            if str(error) != self._problem:
                log.warning("which CPUs kubelet bound could not be read again: %s", error)
                self._problem = str(error)
            return
        if self._problem:
            log.info("kubelet says again which CPUs it bound, within %.1f s", time.monotonic() - began)
            self._problem = ""
