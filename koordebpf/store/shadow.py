"""The week of shadow mode in a file: each agent of a node adds to it, one at a time.

A file is complete or not there: it is written beside its place and renamed. What a thread cannot write waits in memory,
added up.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import threading
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from koordebpf.decision.what_if.week import ShadowDay, ShadowWeek
from koordebpf.errors import ConfigError
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.regular_file import make_folder, open_part, open_regular, read_regular_file
from koordebpf.kernel.io.worker import Supervisor

log = logging.getLogger("koordebpf")
_MOST_BYTES: Final = 1 << 20  # Why: 8 days of 4 configurations are 20 KiB
_CLOSE_S: Final = 0.5
FOLDER: Final = "shadow"


def read_week(path: Path) -> ShadowWeek:
    """Return what a file holds.

    Raises:  ConfigError: it is none of this version. OSError: it cannot be read.
    """
    raw = read_regular_file(path, _MOST_BYTES)
    try:
        return msgspec.json.decode(raw, type=ShadowWeek)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(str(path), raw[:60].decode(errors="replace"), f"must be of shadow mode: {error}") from error


class WeekKeeper:
    """Adds days to the week in a file, in a thread: a disk that hangs is not waited for.

    Args:
        path: of the file; its folder is made.
        now: the week that configurations of now begin with: no days.
    """

    def __init__(self, path: Path, now: ShadowWeek) -> None:
        self._path = path
        self._degraded = Degraded(path, "what shadow configurations come to is not kept")
        self._empty = now
        self._waiting = now  # not written yet
        self._changed = threading.Condition()
        self._is_closing = False
        self._lock_fd: int | None = None
        self._supervisor = Supervisor("shadow")
        self._thread = self._supervisor.thread(self._work)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why nothing is kept; read by other threads."""
        return self._degraded.problem

    def add(self, day: ShadowDay, problems: dict[str, str]) -> None:
        """Add what was counted since the last time."""
        with self._changed:
            self._waiting = replace(self._waiting.with_day(day), problems=problems)
            self._changed.notify_all()

    def close(self) -> None:
        """Write what waits, for half a second at most. Twice is harmless."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        is_over = False
        while not is_over:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting.days or self._is_closing)
                waiting, self._waiting, is_over = self._waiting, self._empty, self._is_closing
            if not waiting.days:
                continue
            self._supervisor.call(functools.partial(self._try_write, waiting, is_over=is_over))
        if self._lock_fd is not None:
            os.close(self._lock_fd)

    def _try_write(self, waiting: ShadowWeek, *, is_over: bool) -> None:
        try:
            self._write(waiting)
            self._degraded.report(None)
        except (OSError, ConfigError) as error:
            self._degraded.report(error)
            self._put_back(waiting)
            if not is_over:
                with self._changed:  # until there is more
                    self._changed.wait(60)

    def _put_back(self, waiting: ShadowWeek) -> None:
        with self._changed:
            newer, self._waiting = self._waiting, waiting
            for day in newer.days:
                self._waiting = replace(self._waiting.with_day(day), problems=newer.problems)

    def _write(self, waiting: ShadowWeek) -> None:
        self._lock()
        week = replace(waiting, days=self._kept().days)
        for day in waiting.days:
            week = week.with_day(day)
        part = self._path.with_suffix(".part")
        fd = open_part(part)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(week.known()))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)

    # One that cannot be read is set aside: it must not keep a new one from being written.
    def _kept(self) -> ShadowWeek:
        try:
            return read_week(self._path)
        except FileNotFoundError:
            return self._empty
        except ConfigError as error:
            log.warning("what shadow configurations came to before is set aside: %s", error)
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_suffix(".corrupt"))
            return self._empty

    def _lock(self) -> None:
        if self._lock_fd is not None:
            return
        make_folder(self._path.parent)
        fd = open_regular(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise ConfigError(str(self._path), "locked", "another agent keeps this node's week") from error
        self._lock_fd = fd
