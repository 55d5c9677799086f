"""Node lock: the exclusive right to act on a node. flock(2), which the kernel releases however the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from koordebpf.collect.scope import NodeScope, folder_of
from koordebpf.errors import ConfigError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.regular_file import make_folder, open_regular
from koordebpf.kernel.io.worker import Supervisor

_LOCK = "lock"
_NEXT_LOCK = "next.lock"
_LOOK_EVERY_S = 0.05  # Why: meanwhile no agent acts, and 20 looks a second are 0.1 % of a core


def is_held(folder: Path) -> bool:
    """Tell whether an agent acts there now."""
    return _is_locked(folder / _LOCK)


def is_awaited(folder: Path) -> bool:
    """Tell whether an agent stands by there, to take over when the one that acts ends."""
    return _is_locked(folder / _NEXT_LOCK)


class LockHeld(ConfigError):
    """Another process acts on this node."""


class NodeLock(Closing):
    """Holds `folder`/lock until `close`; `folder` is one below `run_dir` for each node, machine or cgroup.

    Only agents that act take it: any number that only watch may run beside one. A file that a killed agent left is no
    obstacle, since not the file is the lock but flock(2) on it.

    Raises:  LockHeld: another process has it. ConfigError: the folder cannot be written.
    """

    def __init__(self, run_dir: Path, scope: NodeScope) -> None:
        self.folder = folder_of(run_dir, scope)
        self._lock = _Lock(self.folder, _LOCK)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


class StandBy:
    """Waits for the node lock: takes it as soon as the agent that holds it ends, in whatever way.

    Args:
        tell: called from a thread once `sole` is there.
    Raises:  LockHeld: another process stands by already. ConfigError: the folder cannot be written.
    """

    def __init__(self, run_dir: Path, scope: NodeScope, tell: Callable[[], None]) -> None:
        self.sole: NodeLock | None = None
        self.folder = folder_of(run_dir, scope)
        self._run_dir = run_dir
        self._scope = scope
        self._tell = tell
        self._lock = _Lock(self.folder, _NEXT_LOCK)
        self._is_over = threading.Event()
        self._thread = Supervisor("stand-by").thread(self._wait, again=True)
        self._thread.start()

    def _wait(self) -> None:
        while self.sole is None and not self._is_over.wait(_LOOK_EVERY_S):
            with contextlib.suppress(ConfigError):  # a full disk too: it may have room again
                self.sole = NodeLock(self._run_dir, self._scope)
        if self.sole is not None:
            self._tell()

    def close(self) -> None:
        """Stand by no longer. `sole`, where it is there, stays the caller's."""
        self._is_over.set()
        self._thread.join()
        self._lock.close()


class _Lock:
    """flock(2) on a file of the folder, with words about who has it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._path = folder / name
        try:
            self._fd = self._acquire()
        except OSError as error:
            raise ConfigError("--run-dir", str(folder), f"must be writable: {error.strerror}") from error
        since = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the words too
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} of {socket.gethostname()} since {since}\n".encode(), 0)

    def close(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # not where something is left in it

    def _acquire(self) -> int:
        while True:
            make_folder(self._folder)
            try:
                fd = open_regular(self._path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # its holder removed the folder just now
                continue
            try:
                _flocked(fd)
            except BlockingIOError:
                holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
                os.close(fd)
                rule = f"{holder} stands by on this node already: end it, or let this agent only watch"
                if self._path.name == _LOCK:
                    others = "let this agent only watch, or have it stand by (--stand-by)"
                    rule = f"{holder} acts on this node already: end it, {others}"
                raise LockHeld("--enforce", str(self._folder), rule) from None
            if self._is_current(fd):
                return fd
            os.close(fd)  # its holder removed it between our open and our lock

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False


# Who only asks whether it is held has it for a moment.
def _flocked(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.005)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
