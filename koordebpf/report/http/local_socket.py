"""The Unix socket on which an agent says what it decided: where its file lies, who may open it, how it is asked.

`RUN_DIR/NODE/acting.sock` is the one of the agent that acts, which the node's lock makes the only one; agents that
watch have `watching-….sock` beside it. The files are 0600 in a folder of 0700, the agent's own. A name appears only
once the socket is listened on: where nothing answers, an agent that was killed left it, and it is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.regular_file import make_folder

ACTING_NAME: Final = "acting.sock"
_WATCHING: Final = "watching-*.sock"
_TRIES: Final = 20
_TIMEOUT_S: Final = 5.0
_NO_ANSWER: Final = (ConnectionRefusedError, FileNotFoundError)


class LocalSocket:
    """Binds a socket in `folder`, which is made where it is missing.

    Raises:  OSError: the folder cannot be written, or belongs to another user.
    """

    def __init__(self, folder: Path, *, acts: bool) -> None:
        self.path = folder / (ACTING_NAME if acts else f"watching-{secrets.token_hex(4)}.sock")
        self._folder = folder
        self._hidden = f".{secrets.token_hex(8)}"
        self._inode: int | None = None
        self._fd = -1
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(self.sock.fileno(), 0o600)  # what the file is made with
            self._fd = _bound(self.sock, folder, self._hidden)
            _remove_dead(folder)
        except BaseException:
            self.withdraw()
            self.sock.close()
            raise

    def publish(self) -> None:
        """Give the file its name; the socket is listened on by now."""
        self._inode = os.stat(self._hidden, dir_fd=self._fd, follow_symlinks=False).st_ino
        os.rename(self._hidden, self.path.name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def withdraw(self) -> None:
        """Remove the file, and the folder if it is empty. The socket stays the caller's."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if self._inode is None:
                os.unlink(self._hidden, dir_fd=self._fd)
            elif os.stat(self.path.name, dir_fd=self._fd, follow_symlinks=False).st_ino == self._inode:
                os.unlink(self.path.name, dir_fd=self._fd)  # another agent's has another inode
        os.close(self._fd)
        self._fd = -1
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def agent_socket(run_dir: Path, or_else: str = "name an audit file") -> Path:
    """Return the socket of the agent that runs here: of the one that acts, if one does.

    `or_else` is what there is to do where there is none.

    Raises:  ConfigError: there is none, or more than one.
    """
    try:
        acting = [path for path in sorted(run_dir.glob(f"*/{ACTING_NAME}")) if _answers(path)]
        found = acting or [path for path in sorted(run_dir.glob(f"*/{_WATCHING}")) if _answers(path)]
    except PermissionError as error:
        raise ConfigError("--run-dir", str(run_dir), f"{error.strerror}: run it as root") from error
    if not found:
        rule = f"must have the socket of a running agent; is one running? Or {or_else}, or --url"
        raise ConfigError("--run-dir", str(run_dir), rule)
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise ConfigError("--run-dir", str(run_dir), f"has {len(found)} agents: name one with --url: {names}")
    return found[0]


def asked(path: Path, what: str) -> bytes:
    """Return what the agent behind the socket answers.

    Raises:  OSError, http.client.HTTPException: nothing answers.
    """
    connection = _UnixConnection(path)
    try:
        connection.request("GET", f"/{what}")
        with connection.getresponse() as answer:
            if answer.status != http.client.OK:
                raise http.client.HTTPException(f"{answer.status} {answer.reason}")
            return answer.read()
    finally:
        connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = _connected(self._path)


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(_TIMEOUT_S)
    try:
        with _folder_fd(path.parent) as fd:
            sock.connect(_short(fd, path.name))
    except BaseException:
        sock.close()
        raise
    return sock


def _answers(path: Path) -> bool:
    try:
        _connected(path).close()
    except _NO_ANSWER:
        return False
    except TimeoutError:  # alive, and busy
        return True
    return True


def _remove_dead(folder: Path) -> None:
    for path in folder.glob(_WATCHING):
        with contextlib.suppress(OSError):
            if not _answers(path):
                path.unlink()


# A user who made the folder before us could read along, or put another socket in place of ours.
def _bound(sock: socket.socket, folder: Path, name: str) -> int:
    for is_last in (*[False] * _TRIES, True):
        make_folder(folder)
        fd = -1
        try:
            fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(errno.EPERM, "it belongs to another user, or others may write to it")
            sock.bind(_short(fd, name))
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            # The folder of an agent that ends is removed with it.
            if is_last or not isinstance(error, FileNotFoundError):
                raise
        else:
            return fd
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _folder_fd(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


# The address of a Unix socket has room for 107 bytes.
def _short(folder_fd: int, name: str) -> str:
    return f"/proc/self/fd/{folder_fd}/{name}"
