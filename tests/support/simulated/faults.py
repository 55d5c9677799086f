"""Counts the calls of files, API server and runtime that an agent makes, and lets one of them fail or be its last."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

DEATH = "death"
_CALLS = ("open", "write", "pread", "ftruncate", "fsync", "replace", "rename", "unlink")


class Killed(BaseException):
    """SIGKILL: nothing that the agent does from here on reaches a file or a server."""


class Faults:
    """What happens at which call, counted from the moment at which it was planned.

    Files below `kernel` take a write as the kernel does: as a whole, in place of what they held.
    """

    def __init__(self, kernel: Path) -> None:
        self.calls = 0
        self.is_running = False  # calls of the agent, not of the world around it
        self.is_dead = False
        self.happened: list[str] = []
        self._kernel = f"{kernel}/"
        self._at: dict[int, str | int] = {}
        self._after: dict[str, int] = {}  # by the file's path
        self._fds: set[int] = set()  # the agent's
        self._others = _inotify_fds()  # not opened by os.open

    def plan(self, after_calls: int, what: str | int) -> None:
        """Let the call after so many others fail with this errno, or be the agent's `DEATH`."""
        self._at[self.calls + after_calls + 1] = what

    def fail_after_write(self, path: Path, number: int) -> None:
        """Let the call after the next write to a file of the kernel fail with this errno."""
        self._after[str(path)] = number

    def forget(self) -> None:
        """Let nothing that is planned happen."""
        self._at.clear()

    def note(self, call: str) -> None:
        """Count a call; raises what is planned for it."""
        if not self.is_running:
            return
        if self.is_dead:
            raise Killed(call)
        self.calls += 1
        what = self._at.pop(self.calls, None)
        if what is None:
            return
        self.happened.append(f"{what if isinstance(what, str) else errno.errorcode[what]} at {call}")
        if isinstance(what, int):
            raise OSError(what, os.strerror(what), call)
        self.is_dead = True
        raise Killed(call)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count what is called within."""
        self.is_running = True
        try:
            yield
        finally:
            self.is_running = False

    def bury(self) -> None:
        """Close what a dead agent had open, as the kernel does, and with it its locks."""
        for fd in [*self._fds, *(_inotify_fds() - self._others)]:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()
        self.is_dead = False

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in (*_CALLS, "close", "eventfd")}
        with contextlib.ExitStack() as stack:
            for name in _CALLS:
                stack.enter_context(mock.patch.object(os, name, self._counted(name, real[name])))
            stack.enter_context(mock.patch.object(os, "open", self._opening("open", real["open"])))
            stack.enter_context(mock.patch.object(os, "eventfd", self._opening("eventfd", real["eventfd"])))
            stack.enter_context(mock.patch.object(os, "write", self._writing(real["write"])))
            stack.enter_context(mock.patch.object(os, "close", self._closing(real["close"])))
            stack.enter_context(mock.patch.object(Path, "open", self._counted("open", Path.open)))
            yield

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_running:
                self.note(f"{name} {_name(first)}")
            return real(first, *args, **kwargs)

        return call

    def _opening(self, name: str, real: Callable[..., int]) -> Callable[..., int]:
        counted = self._counted(name, real)

        def call(*args: Any, **kwargs: Any) -> int:
            fd = counted(*args, **kwargs)
            if self.is_running:
                self._fds.add(fd)
            return fd

        return call

    def _writing(self, real: Callable[[int, bytes], int]) -> Callable[[int, bytes], int]:
        counted = self._counted("write", real)

        def call(fd: int, data: bytes) -> int:
            if self.is_running and _name(fd).startswith(self._kernel):
                self.note(f"write {_name(fd)}")
                text = data.rstrip(b"\n") + b"\n"
                os.truncate(fd, 0)
                os.pwrite(fd, text, 0)
                if (number := self._after.pop(_name(fd), None)) is not None:
                    self.plan(0, number)
                return len(data)
            return counted(fd, data)

        return call

    def _closing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(fd: int) -> None:
            self._fds.discard(fd)
            real(fd)

        return call


def _inotify_fds() -> set[int]:
    open_fds = (int(each.name) for each in Path("/proc/self/fd").iterdir())
    return {fd for fd in open_fds if _name(fd) == "anon_inode:inotify"}


def _name(what: object) -> str:
    if not isinstance(what, int):
        return os.fspath(what) if isinstance(what, str | os.PathLike) else str(what)
    try:
        return str(Path(f"/proc/self/fd/{what}").readlink())
    except OSError:
        return f"fd {what}"
