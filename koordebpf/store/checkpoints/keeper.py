"""Reads and writes models of prediction in a thread. It may hang with its disk; the loop does not wait for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from koordebpf.errors import os_reason
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.worker import Worker
from koordebpf.store.checkpoints.folder import CheckpointFolder, Found, newest, read_checkpoints


class CheckpointKeeper:
    """Reads and writes checkpoints in a thread, in the order in which that was asked for.

    Args:
        folder: the agent's own; one that may not write there only reads it.
        koordlet: koordlet's folder; None: it is not read.
        writes: this agent acts on the node, and no other does.
    """

    def __init__(self, folder: Path, koordlet: Path | None, *, writes: bool) -> None:
        self._degraded = Degraded(folder, "models of prediction are not kept")
        self.found: Found | None = None  # once `restore` is done
        self.writes = writes
        self._path = folder
        self._folder = CheckpointFolder(folder)
        self._koordlet = koordlet
        self._asked = self._done = 0
        self._worker: Worker[Callable[[], None]] = Worker("checkpoints", self._do)

    @property
    def problem(self) -> str | None:
        """Why the last write failed; read by other threads."""
        return self._degraded.problem

    @property
    def is_busy(self) -> bool:
        """Something that was asked for is not done yet."""
        return self._done < self._asked

    def restore(self, wanted: Iterable[str]) -> None:
        """Read what is kept of these UIDs into `found`."""
        self._ask(functools.partial(self._restore, frozenset(wanted)))

    def write(self, saved: Mapping[str, bytes], removed: Iterable[str] = ()) -> None:
        """Save and remove files, if this agent may."""
        if self.writes:
            self._ask(functools.partial(self._write, saved, tuple(removed)))

    def close(self, timeout_s: float) -> bool:
        """Let the thread finish, for at most that long; return whether it did."""
        return self._worker.close(timeout_s)

    def _ask(self, task: Callable[[], None]) -> None:
        self._asked += 1
        self._worker.submit(task)

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        finally:
            self._done += 1

    def _restore(self, wanted: frozenset[str]) -> None:
        found = Found({})
        try:
            own = self._folder.take(wanted) if self.writes else read_checkpoints(self._path, wanted)
            theirs = Found({}) if self._koordlet is None else read_checkpoints(self._koordlet, wanted)
            found = newest(own, theirs)
        finally:
            self.found = found  # prediction waits for it

    def _write(self, saved: Mapping[str, bytes], removed: tuple[str, ...]) -> None:
        problem = None
        for uid in removed:
            self._folder.remove(uid)
        for uid, content in saved.items():
            try:
                self._folder.save(uid, content)
            except OSError as error:
                problem = os_reason(error)
                break  # a disk that is full or gone takes no other file either
        if saved:
            self._folder.sync()
        self._degraded.report(problem)
