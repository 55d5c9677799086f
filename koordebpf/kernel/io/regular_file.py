"""Reads and replaces small files in folders where something else may stand: a pipe, a link, what another user made.

One that an agent leaves for the next is whole or not there, and never waited for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.units import MIB

_MOST_BYTES = 4 * MIB  # Why: cookies of 1,500 containers are 0.3 MiB
_REGULAR = "must be a regular file"
_PART = ".part"
_PART_BYTES = 1 << 20  # of one read
_NULL = os.makedev(1, 3)


class KeptFile:
    """Reads and replaces one file. What cannot be read or written is named as `Degraded` does, and is no error.

    Args:
        path: of the file. None: nothing is kept, as in a dry run.
        without: what the agent does without it, as the rest of a sentence.
        most_bytes: a longer file is not read.
    """

    def __init__(self, path: Path | None, without: str, most_bytes: int = _MOST_BYTES) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._degraded = Degraded(path, without)

    @property
    def is_kept(self) -> bool:
        """Whether there is such a file."""
        return self.path is not None

    def read(self) -> bytes | None:
        """Return what it holds; None: it is not there, or cannot be read."""
        if self.path is None:
            return None
        try:
            return read_regular_file(self.path, self._most_bytes)
        except FileNotFoundError:
            return None
        except (ConfigError, OSError) as error:
            self._degraded.report(error)
        return None

    def replace(self, content: bytes) -> bool:
        """Put this in place of what it held; tell whether it is there."""
        return self._done(lambda path: replace_file(path, content))

    def remove(self) -> bool:
        """Remove it; tell whether it is not there."""
        return self._done(lambda path: path.unlink(missing_ok=True))

    def _done(self, change: Callable[[Path], None]) -> bool:
        if self.path is None:
            return False
        try:
            change(self.path)
        except OSError as error:
            self._degraded.report(error)
            return False
        self._degraded.report(None)
        return True


def open_regular(path: Path, flags: int, *, follows: bool = False) -> int:
    """Open a regular file, which is made if `flags` have O_CREAT; return its descriptor.

    It waits for no other end of a pipe, and follows no link in the last place unless it `follows`: then /dev/null will
    do, too, by which people say that there is nothing.

    Raises:  ConfigError: it is no regular file. OSError: it cannot be opened.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follows else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        # A link, a socket, a pipe that no process reads, a folder that is to be written.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise ConfigError(str(path), NOT_GIVEN, _REGULAR) from error
        raise
    status = os.fstat(fd)
    is_null = stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL
    if not (stat.S_ISREG(status.st_mode) or (follows and is_null)):
        os.close(fd)
        raise ConfigError(str(path), NOT_GIVEN, _REGULAR)
    return fd


def open_to_read(path: Path, *, follows: bool = False) -> BinaryIO:
    """Open a regular file to be read; `follows` a link.

    Raises:  ConfigError: it is no regular file. OSError: it cannot be opened.
    """
    return os.fdopen(open_regular(path, os.O_RDONLY, follows=follows), "rb")


def read_regular_file(path: Path, most_bytes: int, *, follows: bool = False) -> bytes:
    """Return what a regular file holds; `follows` a link.

    Raises:  ConfigError: it is no regular file, or longer than `most_bytes`. OSError: it cannot be read.
    """
    with open_to_read(path, follows=follows) as file:
        content = read_at_most(file, most_bytes + 1)
    if len(content) > most_bytes:
        raise ConfigError(str(path), f"{len(content)} bytes or more", f"must be {most_bytes} bytes or less")
    return content


def read_at_most(file: BinaryIO, most_bytes: int) -> bytes:
    """Return what is left in a file, so many bytes of it at most.

    In parts: one read(2) of so many bytes takes their memory before it knows how many there are.
    """
    content = bytearray()
    while len(content) < most_bytes and (part := file.read(min(most_bytes - len(content), _PART_BYTES))):
        content += part
    return bytes(content)


def read_given_file(path: Path, most_bytes: int, wait_s: float = 5.0) -> bytes:
    """Return what a file holds that a person named: links are followed, and a pipe is read that a process writes to.

    Raises:  ConfigError: nothing comes out of a pipe for `wait_s`, or it is longer than `most_bytes`. OSError: it
             cannot be read.
    """
    content = bytearray()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb", buffering=0) as file:
        is_pipe = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        while len(content) <= most_bytes:
            if is_pipe and not select.select([file], [], [], wait_s)[0]:
                raise ConfigError(str(path), NOT_GIVEN, f"nothing has come out of this pipe for {wait_s:g} s")
            if not (part := file.read(min(most_bytes + 1 - len(content), _PART_BYTES))):
                return bytes(content)
            content += part
    raise ConfigError(str(path), NOT_GIVEN, f"must be {most_bytes} bytes or less")


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder, and those above it, where it is missing.

    Raises:  OSError: it cannot be made, or something else is there.
    """
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder") from error


def open_part(path: Path, flags: int = os.O_WRONLY) -> int:
    """Make the file that is renamed once it is complete; what stands in its place, a link or a pipe, is removed.

    Raises:  OSError: it cannot be made.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def replace_file(path: Path, content: bytes) -> None:
    """Put a file that holds this in place of what is there: it is whole, or as it was. Nothing is synced.

    Raises:  OSError: it is as it was.
    """
    part = path.with_suffix(_PART)
    fd = open_part(part)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()  # half of it would take the room that others need
        raise
