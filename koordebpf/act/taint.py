"""Makes the Node object what is wished for, from one thread, however long the API server takes."""

from __future__ import annotations

import abc
import functools
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.clients.taints import Mark
from koordebpf.kube.http.refusal import Backoff

_log = logging.getLogger(__name__)
TIMEOUT_S = 5.0  # Why: as for evictions (act/evict/api.py)
CLOSE_S = 2.0  # Why: two requests of milliseconds each; the kubelet kills after ten seconds
_FIRST_S, _CAP_S = 0.2, 30.0
# Why 10 s to 10 min: roles do not change under pressure, but a server that has just started says 403 for a second.
_DENIED_FIRST_S, _DENIED_CAP_S = 10.0, 600.0
W = TypeVar("W")  # how the node is to be


class MarksNode(Protocol):
    """The calls that are made; `kube.clients.taints.NodeMarks` has them."""

    node_name: str

    def put(self, mark: Mark, *, at: datetime, timeout_s: float) -> bool:
        """Return whether the mark had to be written."""

    def remove(self, *, timeout_s: float) -> bool:
        """Return whether one had to be removed."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class NodeWorker(abc.ABC, Generic[W]):
    """Makes the Node what was wished for last. It begins with nothing: what a predecessor left is taken away.

    `problem` is why it cannot, and None where it is so or was not tried yet; read by other threads.

    Args:
        name: of the thread.
        nothing: the wish at the start and at the end.
        cut: lets requests that wait fail at once.
    """

    close_s = CLOSE_S  # `close` waits so long for the last requests
    again_s: float | None = None  # the Node is looked at again so long after it was made; None: it is not

    def __init__(self, name: str, nothing: W, cut: Callable[[], None]) -> None:
        self.problem: str | None = None
        self._nothing = nothing
        self._cut = cut
        self._changed = threading.Condition()
        self._wish = nothing
        self._is: W | None = None  # as the Node was made; None: a predecessor may have left anything
        self._was_refused = False
        self._is_closing = False
        self._is_late = False
        self._backoff = Backoff(_FIRST_S, _CAP_S)
        self._denied = Backoff(_DENIED_FIRST_S, _DENIED_CAP_S)
        supervisor = Supervisor(name)
        self._thread = supervisor.thread(functools.partial(self._work, supervisor), again=True)
        self._thread.start()

    @abc.abstractmethod
    def make(self, wish: W, at: datetime) -> bool:
        """Make the Node so; return whether it had to be changed. One request after another, without a retry."""

    @abc.abstractmethod
    def doing(self, wish: W) -> str:
        """Return what cannot be done where a request fails, as the begin of a sentence."""

    @abc.abstractmethod
    def done(self, wish: W, *, is_first: bool) -> str:
        """Return what was made, as a sentence; `is_first`: after what a predecessor may have left."""

    @abc.abstractmethod
    def left(self) -> str:
        """Return what may stay on the node at the end, as a sentence."""

    def wish(self, wish: W) -> None:
        """Say how the node is to be from now on. Does not wait."""
        with self._changed:
            if self._wish != wish:
                self._wish = wish
                self._changed.notify()

    def close(self) -> None:
        """Take everything away, but for no longer than `close_s`, then stop the thread."""
        with self._changed:
            self._wish, self._is_closing = self._nothing, True
            self._changed.notify()
        self._thread.join(self.close_s)
        with self._changed:
            self._is_late = True
            self._changed.notify()
        self._cut()
        self._thread.join()
        if self._is != self._nothing and not self._was_refused:
            _log.warning("%s", self.left())

    def _work(self, supervisor: Supervisor) -> None:
        while (wish := self._next()) is not None:
            wait_s = self._make(wish, supervisor)
            with self._changed:
                # After a failure the state is unknown: a request without an answer may have been carried out.
                self._is = wish if wait_s is None else None
                if wait_s is not None:
                    self._rest(wish, wait_s)

    # None: it is time to end.
    def _next(self) -> W | None:
        with self._changed:
            while self._wish == self._is and not self._is_closing:
                if not self._changed.wait(None if self._wish == self._nothing else self.again_s):
                    return self._wish
            return None if self._is_late or self._wish == self._is else self._wish

    def _rest(self, wish: W, wait_s: float) -> None:
        if self._is_closing:
            self._is_late = self._is_late or self._was_refused
            self._changed.wait_for(lambda: self._is_late, wait_s)
        else:
            self._changed.wait_for(lambda: self._wish != wish or self._is_closing, wait_s)

    # How long to wait before the next try; None: it is done.
    def _make(self, wish: W, supervisor: Supervisor) -> float | None:
        try:
            has_changed = self.make(wish, datetime.now(UTC))
        except KubeDenied as error:
            if not self._was_refused:
                _log.warning("%s: %s: allow %s on %s", self.doing(wish), error, error.verb, error.resource)
            self.problem = f"{error}: allow {error.verb} on {error.resource}"
            self._was_refused = True
            return self._denied.next_s()
        except KubeConflict:
            return self._backoff.next_s()  # another wrote first, which is no news: the next try looks again
        except KubeError as error:
            if str(error) != self.problem:
                _log.warning("%s: %s", self.doing(wish), error)
            self.problem = str(error)
            asked_s = error.retry_after_s if isinstance(error, KubeBusy) else None
            return asked_s or (self._backoff if error.retry else self._denied).next_s()
        except Exception as error:  # without the thread the mark would stay
            supervisor.failed(error)
            self.problem = f"{type(error).__name__}: {error}"
            return self._denied.next_s()
        if has_changed:
            _log.info("%s", self.done(wish, is_first=self._is is None))
        self._was_refused, self.problem = False, None
        supervisor.worked()
        self._backoff.reset()
        self._denied.reset()
        return None


class NodeMarker(NodeWorker[bool]):
    """Puts one mark on the node and takes it away."""

    def __init__(self, marks: MarksNode, mark: Mark) -> None:
        self._marks = marks
        self._mark = mark
        super().__init__("node-mark", False, marks.close)

    def make(self, wish: bool, at: datetime) -> bool:
        """As `NodeWorker.make`."""
        if wish:
            return self._marks.put(self._mark, at=at, timeout_s=TIMEOUT_S)
        return self._marks.remove(timeout_s=TIMEOUT_S)

    def doing(self, wish: bool) -> str:
        """As `NodeWorker.doing`."""
        return f"node {self._marks.node_name} cannot be {'marked' if wish else 'unmarked'}"

    def done(self, wish: bool, *, is_first: bool) -> str:
        """As `NodeWorker.done`."""
        said = f"is marked by a {self._mark}" if wish else f"is without its {self._mark}"
        if not wish and is_first:
            said = "is without the mark that was left on it"
        return f"node {self._marks.node_name} {said}"

    def left(self) -> str:
        """As `NodeWorker.left`."""
        return f"node {self._marks.node_name} may keep a {self._mark} until an agent starts there"
