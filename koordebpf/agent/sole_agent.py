"""The right to act on a node: one process has it at a time, and however it ends, the kernel gives it back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from koordebpf.agent.scope import NodeScope
from koordebpf.errors import ConfigError

_LOCK = "lock"
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def folder_of(run_dir: Path, scope: NodeScope) -> Path:
    """Return the folder of the one agent that acts on this node."""
    return run_dir / ("machine" if scope.kind == "machine" else f"{scope.path.name}-{scope.root_id}")


def is_held(folder: Path) -> bool:
    """Tell whether an agent acts there now."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class SoleAgent:
    """Holds `folder`/lock until `close`; `folder` is one below `run_dir` for each node, machine or cgroup.

    Only agents that act take it: any number that only watch may run beside one. A file that a killed agent left is no
    obstacle, since not the file is the lock but flock(2) on it.

    Raises:  ConfigError: another process has it, or the folder cannot be written.
    """

    def __init__(self, run_dir: Path, scope: NodeScope) -> None:
        self.folder = folder_of(run_dir, scope)
        self._path = self.folder / _LOCK
        try:
            self._fd = self._taken()
        except OSError as error:
            raise ConfigError("--run-dir", str(self.folder), f"must be writable: {error.strerror}") from error
        since = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the words too
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} of {socket.gethostname()} since {since}\n".encode(), 0)

    def close(self) -> None:
        """Give it back."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # not where something is left in it

    def _taken(self) -> int:
        while True:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                fd = os.open(self._path, _OPEN, 0o600)
            except FileNotFoundError:  # its holder removed the folder just now
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
                os.close(fd)
                rule = f"{holder} acts on this node already: end it, or let this agent only watch"
                raise ConfigError("--enforce", str(self.folder), rule) from None
            if self._is_current(fd):
                return fd
            os.close(fd)  # its holder removed it between our open and our lock

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
