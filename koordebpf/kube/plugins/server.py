"""A gRPC server on a Unix socket, for one loop: nothing in it waits, and no client keeps another waiting.

Who may connect is the mode of the socket: its owner alone. The file is there from when it can be connected to until
`close`; the one of a server that died is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from koordebpf.errors import ConfigError, os_reason
from koordebpf.kernel.io.closing import Closing
from koordebpf.kube.plugins.connection import MOST_BYTES, Methods, ServerConnection

log = logging.getLogger(__name__)

_CLIENTS = 32  # Why: an agent has one or two connections
_BACKLOG = 64
_MOST_BYTES = 4 * MOST_BYTES  # of all clients together: one that exceeds it is cut off
_PATH_BYTES = 107  # sun_path of unix(7)
_LOOK_S = 5.0
_LOCK_TRIES, _LOCK_PAUSE_S = 10, 0.02
_MODE, _FOLDER_MODE = 0o600, 0o755  # Why: agents are root; the folder as Katalyst makes it


class GrpcServer(Closing):
    """Serves unary calls. Its owner calls `serve` when `fileno` is ready, and `run_due` by the time that it returned.

    Args:
        path: of the socket; directories above it are made.
        methods: what is called, in the thread of the owner.
        now_s: CLOCK_MONOTONIC.
    Raises:  ConfigError: another server is alive there, what is there is no socket, or none can be made.
    """

    def __init__(self, path: Path, methods: Methods, now_s: float) -> None:
        self._path = path
        self._methods = methods
        self._clients: dict[int, ServerConnection] = {}
        self._due_s = now_s + _LOOK_S  # of the next look at the file
        self._listening, self._identity = _listen(path)
        self._epoll = select.epoll()
        self._epoll.register(self._listening, select.EPOLLIN)

    def fileno(self) -> int:
        """Return what is readable when there is something to serve."""
        return self._epoll.fileno()

    def serve(self, now_s: float) -> None:
        """Take in what clients sent, answer it, send what they have room for."""
        for fd, events in self._epoll.poll(0):
            if fd == self._listening.fileno():
                self._accept(now_s)
            elif (client := self._clients.get(fd)) is not None:
                self._serve_one(fd, client, events, now_s)

    def run_due(self, now_s: float) -> float:
        """Let clients go that are late, and bring the socket back where it was removed; return when to look again.

        Raises:  ConfigError: another server has taken its place.
        """
        for fd, client in list(self._clients.items()):
            if (due_s := client.due_s) is not None and due_s <= now_s:
                log.debug("a client did not move in time")
                self._leave(fd)
        if now_s >= self._due_s:
            self._due_s = now_s + _LOOK_S
            self._check_file()
        return min([self._due_s, *(each.due_s for each in self._clients.values() if each.due_s is not None)])

    def close(self) -> None:
        """Remove the socket if it is still this server's, and end every connection."""
        if self._epoll.closed:
            return
        with contextlib.suppress(OSError), _alone(self._path.parent):
            if _identity(self._path) == self._identity:
                self._path.unlink()
        for fd in list(self._clients):
            self._leave(fd)
        self._listening.close()
        self._epoll.close()

    def _accept(self, now_s: float) -> None:
        try:
            accepted, _ = self._listening.accept()
        except OSError as error:  # it has left already, or there is no descriptor for it
            log.debug("accept: %s", error)
            return
        if len(self._clients) >= _CLIENTS and not self._make_room():
            accepted.close()
            return
        client = ServerConnection(accepted, self._methods, now_s)
        self._clients[accepted.fileno()] = client
        self._epoll.register(accepted, _events(client))

    # The one that has been silent for longest leaves, if none of its calls is open.
    def _make_room(self) -> bool:
        idle = [(each.seen_s, fd) for fd, each in self._clients.items() if each.is_idle]
        if not idle:
            return False
        self._leave(min(idle)[1])
        return True

    def _serve_one(self, fd: int, client: ServerConnection, events: int, now_s: float) -> None:
        try:
            if events & select.EPOLLOUT:
                client.write(now_s)
            if events & ~select.EPOLLOUT:
                client.read(now_s)
        except Exception as error:  # whatever one client sends ends that client alone
            log.warning("a client of %s: %s: %s", self._path, type(error).__name__, error)
            client.is_closed = True
        if client.is_closed or sum(each.held_bytes for each in self._clients.values()) > _MOST_BYTES:
            self._leave(fd)
        else:
            self._epoll.modify(fd, _events(client))

    def _leave(self, fd: int) -> None:
        client = self._clients.pop(fd)
        self._epoll.unregister(fd)
        client.close()

    def _check_file(self) -> None:
        there = _identity(self._path)
        if there == self._identity:
            return
        if there is not None:
            raise ConfigError("socket", str(self._path), "another server has taken its place: end one of the two")
        log.warning("%s was removed; serving it again", self._path)
        self._epoll.unregister(self._listening)
        self._listening.close()
        self._listening, self._identity = _listen(self._path)
        self._epoll.register(self._listening, select.EPOLLIN)


def _events(client: ServerConnection) -> int:
    return (select.EPOLLIN if client.wants_read else 0) | (select.EPOLLOUT if client.wants_write else 0)


def _listen(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise ConfigError("socket", str(path), f"must have at most {_PATH_BYTES} bytes: choose a shorter directory")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        with _alone(path.parent):
            _make_vacant(path)
            os.fchmod(listening.fileno(), _MODE)  # of the file that bind makes, unix(7)
            listening.bind(str(path))
            listening.listen(_BACKLOG)
            identity = _identity(path)
    except OSError as error:
        listening.close()
        rule = f"{os_reason(error)}: choose a directory that can be written"
        raise ConfigError("socket", str(path), rule) from error
    except ConfigError:
        listening.close()
        raise
    assert identity is not None  # others wait until it is known
    return listening, identity


# Two that start at once do not both find the place vacant. Anyone who reads the directory can keep its lock: the server
# starts without it then.
@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOCK_PAUSE_S)
        yield
    finally:
        os.close(fd)


def _make_vacant(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError("socket", str(path), "is no socket: move it away, or choose another name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as other:
        found = other.connect_ex(str(path))
    if found not in (errno.ECONNREFUSED, errno.ENOENT):
        raise ConfigError("socket", str(path), "another process serves it: end that one, or choose another name")
    path.unlink(missing_ok=True)  # its server has died


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino  # not reused while the server listens
