"""Finds eviction plugins by their sockets, as the kubelet's plugin watcher does, and registers those that qualify.

A socket is asked who serves it. A plugin that qualifies is called from then on, and learns whether it was registered. A
socket that is replaced, or whose plugin does not answer, is asked again, later each time. Everything runs beside the
loop: no socket keeps another, or the loop, waiting.

Source: k8s.io/kubernetes pkg/kubelet/pluginmanager; katalyst-core cmd/katalyst-agent/app/agent/eviction.go.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

from koordebpf.collect.plugins.access import PluginAccess
from koordebpf.collect.plugins.qualify import Change, Refusal, answer, qualified
from koordebpf.collect.plugins.sockets import sockets_below
from koordebpf.errors import DecodeError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.clients.grpc import GrpcError, GrpcSocket
from koordebpf.kube.clients.protobuf import encode
from koordebpf.kube.http.backoff import Backoff
from koordebpf.kube.plugins.messages import (
    REGISTRATION_MESSAGES,
    REGISTRATION_SERVICE,
)
from koordebpf.printable import printable
from koordebpf.slo.katalyst.access import Validation

log = logging.getLogger(__name__)

LOOK_S = 1.0  # Why: as often as the kubelet reconciles
_NOTIFY_S = 5.0  # Why: Katalyst's
_CAP_S = 60.0
_SIDE_BY_SIDE = 8
_CLOSE_S = 1.0


class _Socket:
    """One socket that was seen: which file it is, and what became of asking it."""

    def __init__(self, identity: tuple[int, int], first_s: float) -> None:
        self.identity = identity
        self.name: str | None = None  # of the plugin that is registered by it
        self.problem: str | None = None
        self.backoff = Backoff(first_s, _CAP_S)
        self.due_s = 0.0
        self.is_asked = False


class PluginRegistry:
    """The sockets below a directory, looked at again and again.

    Args:
        folder: where plugins put their sockets; one that is not there is looked for again.
        taken: names that no plugin outside may have.
        wake: is called from another thread when `take` has something.
        access: who may register; None: everyone, as Katalyst's default has it.
        look_s: between two looks, and at first until a socket is asked again.
    """

    def __init__(
        self,
        folder: Path,
        taken: Collection[str],
        wake: Callable[[], None],
        access: PluginAccess | None = None,
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._folder = folder
        self._access = access or PluginAccess()
        self._taken = frozenset(taken)
        self._wake = wake
        self._look_s = look_s
        self._sockets: dict[Path, _Socket] = {}
        self._lock = threading.Lock()
        self._changes: SimpleQueue[Change] = SimpleQueue()
        self._ends = threading.Event()
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="plugin-registration")
        self._supervisor = Supervisor("plugin-registry")
        self._thread = self._supervisor.thread(self._run)
        self._thread.start()

    def take(self) -> list[Change]:
        """Return what has changed since the last call, in order."""
        changes: list[Change] = []
        while True:
            try:
                changes.append(self._changes.get_nowait())
            except Empty:
                return changes

    @property
    def problems(self) -> dict[str, str]:
        """Why sockets are not registered, by their path."""
        with self._lock:
            return {str(path): each.problem for path, each in self._sockets.items() if each.problem is not None}

    @property
    def validations(self) -> dict[Validation, int]:
        """How often plugins that asked for registration were valid, or not and why."""
        return self._access.validations

    def close(self) -> None:
        """Ask no socket any more; a call that is open ends by its deadline."""
        self._ends.set()
        self._thread.join(_CLOSE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._ends.wait(self._look_s):
            self._supervisor.call(self._look_there)

    def _look_there(self) -> None:
        try:
            self._look(sockets_below(self._folder))
        except OSError as error:
            log.debug("%s: %s", self._folder, error)

    def _look(self, there: dict[Path, tuple[int, int]]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for path, known in list(self._sockets.items()):
                if there.get(path) != known.identity:
                    del self._sockets[path]
                    self._leaves(known)
            for path, identity in there.items():
                known = self._sockets.setdefault(path, _Socket(identity, self._look_s))
                if known.name is None and not known.is_asked and now_s >= known.due_s:
                    known.is_asked = True
                    self._pool.submit(self._ask, path, known)

    def _leaves(self, known: _Socket) -> None:
        if known.name is not None and not any(each.name == known.name for each in self._sockets.values()):
            log.info("plugin %s is registered no more", known.name)
            self._changes.put(Change(known.name, None))
            self._wake()

    def _ask(self, path: Path, known: _Socket) -> None:
        try:
            change = self._registered(path)
        except Exception as error:
            with self._lock:
                is_news = known.problem != str(error)
                known.problem, known.is_asked = str(error), False
                known.due_s = time.monotonic() + known.backoff.next_s()
            if is_news:
                log.warning("no plugin is registered by %s: %s", printable(str(path)), error)
            return
        with self._lock:
            known.name, known.problem, known.is_asked = change.name, None, False
            is_there = self._sockets.get(path) is known
            for other in self._sockets.values():
                if other is not known and other.name == change.name:
                    other.name = None  # it has lost its place, and would ask for it again
                    other.due_s = float("inf")
        if is_there:
            log.info("plugin %s is registered by %s", change.name, printable(str(path)))
            self._changes.put(change)
            self._wake()

    def _registered(self, path: Path) -> Change:
        socket = GrpcSocket(path)
        try:
            try:
                change = qualified(socket, path, self._taken, self._access)
            except Refusal as refusal:
                _notify(socket, str(refusal))
                raise
            _notify(socket, "")
            return change
        finally:
            socket.close()


def _notify(socket: GrpcSocket, error: str) -> None:
    status = {"plugin_registered": not error, "error": error}
    message = encode(REGISTRATION_MESSAGES, "RegistrationStatus", status)
    try:
        answer(socket, f"{REGISTRATION_SERVICE}/NotifyRegistrationStatus", message, _NOTIFY_S)
    except (GrpcError, DecodeError) as failed:
        raise Refusal(f"it did not take the answer to its registration: {failed}") from failed
