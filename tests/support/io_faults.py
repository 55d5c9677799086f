"""One fault at each call to the file system, as SQLite tests I/O errors: the n-th fails, for every n in turn.

    for fault in each_fault(tmp_path):
        with fault:
            …  # write files below fault.folder
        …      # what has to hold for the next reader

The calls are those of `os` and of Python's files; what no fault is due for is done by the kernel, in real files.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import errno
import io
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_MOST_CALLS: Final = 2000
_TAKES_ROOM: Final = ("creat", "write", "mkdir", "fsync", "fdatasync", "rename", "replace")
_CALLS: Final = (*_TAKES_ROOM, "open", "ftruncate", "unlink")


class Kind(enum.Enum):
    """What happens at the n-th call, and at those after it."""

    FULL_ONCE = "ENOSPC, once"
    FULL = "ENOSPC from then on"
    BROKEN_ONCE = "EIO, once"
    BROKEN = "EIO from then on"
    SHORT_ONCE = "half is written, once"
    SHORT = "half is written, and then ENOSPC until a file is cut"
    KILLED = "SIGKILL before the call"
    KILLED_WITHIN = "SIGKILL after half of a write"


class Killed(BaseException):
    """The process is no more: no `except` of what is tested may continue."""


_ERRORS: Final = {
    Kind.FULL_ONCE: errno.ENOSPC,
    Kind.FULL: errno.ENOSPC,
    Kind.BROKEN_ONCE: errno.EIO,
    Kind.BROKEN: errno.EIO,
}
_AT: Final = {
    Kind.FULL_ONCE: _TAKES_ROOM,
    Kind.FULL: _TAKES_ROOM,
    Kind.BROKEN_ONCE: _CALLS,
    Kind.BROKEN: _CALLS,
    Kind.SHORT_ONCE: ("write",),
    Kind.SHORT: ("write",),
    Kind.KILLED: _CALLS,
    Kind.KILLED_WITHIN: ("write",),
}


class IoFault:
    """The fault at the n-th call, while it is entered. `was_met`: there were so many calls.

    Killed: what was tested ends there, nothing that it does later reaches the disk, and its descriptors are closed.
    """

    def __init__(self, folder: Path, kind: Kind, at: int) -> None:
        self.folder = folder
        self.kind = kind
        self.was_met = False
        self.calls: list[str] = []
        self._at = at
        self._lock = threading.Lock()
        self._is_full = False
        self._is_killed = False
        self._files: list[_File] = []
        self._undo = contextlib.ExitStack()

    @property
    def was_killed(self) -> bool:
        """Whether what was tested came to an end."""
        return self._is_killed

    def __str__(self) -> str:
        """Return it for a failed test."""
        return f"{self.kind.value} at call {self._at}: {self.calls[-1] if self.calls else 'none yet'}"

    def __enter__(self) -> Self:
        for name in _CALLS[1:]:
            self._put(os, name, self._faulty(name, getattr(os, name)))
        for module in (io, builtins):
            self._put(module, "open", self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._undo.close()
        if self._is_killed:
            for file in self._files:
                file.close()
            for each in list(Path("/proc/self/fd").iterdir()):
                if self._is_ours(int(each.name)):
                    os.close(int(each.name))
        if error is not None and not isinstance(error, Killed):
            error.add_note(str(self))
        return isinstance(error, Killed)

    def _put(self, module: Any, name: str, value: Callable[..., Any]) -> None:
        self._undo.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def _faulty(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            if not self._is_ours(first):
                return real(first, *rest, **named)
            if name == "write":
                return self.write(lambda data: real(first, data), *rest)
            is_new = name == "open" and rest and rest[0] & os.O_CREAT
            self.meet("creat" if is_new else name)
            done = real(first, *rest, **named)
            self._is_full = self._is_full and name != "ftruncate"
            return done

        return call

    def write(self, real: Callable[[memoryview], int], data: Any) -> int:
        """Write, or a half of it where a fault is due."""
        whole = memoryview(data).cast("B")
        if not self.meet("write"):
            return real(whole)
        written = real(whole[: len(whole) // 2])
        if self.kind is Kind.KILLED_WITHIN:
            self._is_killed = True
            raise Killed
        return written

    def meet(self, name: str) -> bool:
        """Fail where a fault is due; tell whether a write is to be cut."""
        with self._lock:
            if self._is_killed:
                raise Killed
            if self._is_full and name in _TAKES_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if name not in _AT[self.kind]:
                return False
            self.calls.append(name)
            is_due = len(self.calls) == self._at
            self.was_met = self.was_met or is_due
            if is_due and self.kind in (Kind.SHORT_ONCE, Kind.SHORT, Kind.KILLED_WITHIN):
                self._is_full = self.kind is Kind.SHORT
                return True
            if is_due and self.kind is Kind.KILLED:
                self._is_killed = True
                raise Killed
            is_lasting = self.kind in (Kind.FULL, Kind.BROKEN)
            if is_due or (is_lasting and self.was_met):
                raise OSError(_ERRORS[self.kind], os.strerror(_ERRORS[self.kind]))
            return False

    def _file(self, file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any) -> Any:
        if not self._is_ours(file) or not set(mode) & set("wax+"):
            return _OPEN(file, mode, buffering, *rest, **named)
        if not isinstance(file, int):
            self.meet("creat")
        raw = _File(self, file, mode)
        self._files.append(raw)
        if buffering == 0:
            return raw
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **named)

    def _is_ours(self, file: Any) -> bool:
        try:
            path = Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else Path(os.fsdecode(file))
        except OSError:
            return False
        return path.is_relative_to(self.folder)


_OPEN: Final = io.open  # the real one, while another is in its place


class _File(io.FileIO):
    def __init__(self, fault: IoFault, file: Any, mode: str) -> None:
        self._fault = fault
        super().__init__(file, mode.replace("b", "").replace("t", ""))

    def write(self, data: Any, /) -> int:
        return self._fault.write(lambda part: super(_File, self).write(part), data)


def each_fault(folder: Path, *kinds: Kind) -> Iterator[IoFault]:
    """Yield a fault of each kind at the first call, the second and so on, until there are no more calls.

    Each has a folder of its own.
    """
    for kind in kinds or Kind:
        for at in itertools.count(1):
            assert at < _MOST_CALLS, f"{kind.value}: no end of calls"
            own = folder / f"{kind.name.lower()}-{at}"
            own.mkdir()
            fault = IoFault(own, kind, at)
            yield fault
            if not fault.was_met:
                assert at > 1, f"{kind.value}: nothing was written"
                break
