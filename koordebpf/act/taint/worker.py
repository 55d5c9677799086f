"""Puts the mark on the node and takes it away, from one thread, however long the API server takes."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Protocol

from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError
from koordebpf.kube.clients.taints import Mark
from koordebpf.kube.http.backoff import Backoff

_log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0  # Why: as for evictions (act/evict/api.py)
_CLOSE_S = 2.0  # Why: two requests of milliseconds each; the kubelet kills after ten seconds
_FIRST_S, _CAP_S = 0.2, 30.0
# Why 10 s to 10 min: roles do not change under pressure, but a server that has just started says 403 for a second.
_DENIED_FIRST_S, _DENIED_CAP_S = 10.0, 600.0


class MarksNode(Protocol):
    """The calls that are made; `kube.clients.taints.NodeMarks` has them."""

    node_name: str

    def put(self, mark: Mark, *, at: datetime, timeout_s: float) -> bool:
        """Return whether the mark had to be written."""

    def remove(self, *, timeout_s: float) -> bool:
        """Return whether one had to be removed."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class NodeMarker:
    """Makes the Node what was wished for last. It begins without a mark: what a predecessor left is taken away."""

    def __init__(self, marks: MarksNode, mark: Mark) -> None:
        self._marks = marks
        self._mark = mark
        self._changed = threading.Condition()
        self._wish = False
        self._is: bool | None = None  # as the Node was made; None: a predecessor may have left anything
        self._was_refused = False
        self._is_closing = False
        self._is_late = False
        self._backoff = Backoff(_FIRST_S, _CAP_S)
        self._denied = Backoff(_DENIED_FIRST_S, _DENIED_CAP_S)
        self._thread = threading.Thread(target=self._work, name="node-mark", daemon=True)
        self._thread.start()

    def wish(self, is_on: bool) -> None:
        """Say how the node is to be from now on. Does not wait."""
        with self._changed:
            if self._wish is not is_on:
                self._wish = is_on
                self._changed.notify()

    def close(self) -> None:
        """Take the mark away, but for no longer than two seconds, then stop the thread."""
        with self._changed:
            self._wish, self._is_closing = False, True
            self._changed.notify()
        self._thread.join(_CLOSE_S)
        with self._changed:
            self._is_late = True
            self._changed.notify()
        self._marks.close()
        self._thread.join()
        if self._is is not False and not self._was_refused:
            _log.warning("node %s may keep a %s until an agent starts there", self._marks.node_name, self._mark)

    def _work(self) -> None:
        while (wish := self._next()) is not None:
            wait_s = self._make(wish)
            with self._changed:
                # After a failure the state is unknown: a request without an answer may have been carried out.
                self._is = wish if wait_s is None else None
                if wait_s is not None:
                    self._rest(wish, wait_s)

    # None: it is time to end.
    def _next(self) -> bool | None:
        with self._changed:
            while self._wish is self._is and not self._is_closing:
                self._changed.wait()
            return None if self._is_late or self._wish is self._is else self._wish

    def _rest(self, wish: bool, wait_s: float) -> None:
        if self._is_closing:
            self._is_late = self._is_late or self._was_refused
            self._changed.wait_for(lambda: self._is_late, wait_s)
        else:
            self._changed.wait_for(lambda: self._wish is not wish or self._is_closing, wait_s)

    # How long to wait before the next try; None: it is done.
    def _make(self, wish: bool) -> float | None:
        what = f"node {self._marks.node_name} cannot be {'marked' if wish else 'unmarked'}"
        try:
            if wish:
                has_changed = self._marks.put(self._mark, at=datetime.now(UTC), timeout_s=_TIMEOUT_S)
            else:
                has_changed = self._marks.remove(timeout_s=_TIMEOUT_S)
        except KubeDenied as error:
            if not self._was_refused:
                _log.warning("%s: %s: allow %s on %s", what, error, error.verb, error.resource)
            self._was_refused = True
            return self._denied.next_s()
        except KubeConflict:
            return self._backoff.next_s()  # another wrote first, which is no news: the next try looks again
        except KubeError as error:
            _log.warning("%s: %s", what, error)
            asked_s = error.retry_after_s if isinstance(error, KubeBusy) else None
            return asked_s or self._backoff.next_s()
        except Exception:  # without the thread the mark would stay
            _log.exception("%s", what)
            return self._denied.next_s()
        if has_changed:
            said = f"is marked by a {self._mark}" if wish else f"is without its {self._mark}"
            if not wish and self._is is None:
                said = "is without the mark that was left on it"
            _log.info("node %s %s", self._marks.node_name, said)
        self._was_refused = False
        self._backoff.reset()
        self._denied.reset()
        return None
