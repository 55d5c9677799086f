"""Every file that an option names for output is opened here, so that one rule holds for all of them.

`-` is standard output. A missing path or a regular file is replaced whole; a log that grows is appended to. The target
of a link is written if it is a regular file, and the link stays; any other link is refused. Devices, FIFOs and sockets
are written to, and never replaced or removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.closing import Closing
from koordebpf.store.line_sink import write_whole

STDOUT = Path("-")
_STDOUT_FD = 1
_RULE = "must be a file that can be written"
_LINK = "a link must lead to a regular file"
_OPEN = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
_MODE = 0o600  # Why: names of pods are in it, and those are for the one who asked


class OutputFile(Closing):
    """An output that is open: standard output, a new file, or what is no regular file.

    A new file lies hidden beside the path until `commit` puts it in place of what is there; `close` without it removes
    it.

    Args:
        option: that names it, for errors.
        path: `-` for standard output.

    Raises:  ConfigError: it cannot be written; what is there stays as it is.
    """

    def __init__(self, option: str, path: Path) -> None:
        self.name = "standard output" if path == STDOUT else str(path)
        self._place: tuple[Path, Path] | None = None  # the new file and its place, until it is there
        self._option, self._path = option, path
        self.fd = -1
        try:
            self._open()
        except OSError as error:
            self.close()
            raise self.error(error) from error

    def error(self, error: OSError) -> ConfigError:
        """Return the error of an output that could not be written, with option, path and rule."""
        return ConfigError(self._option, str(self._path), f"{_RULE}: {error.strerror}")

    def write(self, data: bytes | memoryview) -> None:
        """Write all of it, and wait for a reader.

        Raises:  OSError: it was not written, or in part.
        """
        write_whole(self.fd, data)

    def commit(self) -> None:
        """Put a new file in its place, at once and whole; what is written later is in it too.

        Raises:  ConfigError: it cannot be put there; what was there is there still.
        """
        if self._place:
            made, place = self._place
            try:
                check_replaceable([place])
                made.replace(place)
            except OSError as error:
                raise self.error(error) from error
            self._place = None

    def close(self) -> None:
        """Close it; a new file that is not in its place is removed. Twice is harmless."""
        if self._place:
            with contextlib.suppress(OSError):
                self._place[0].unlink()
            self._place = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _open(self) -> None:
        if self._path == STDOUT:
            if os.isatty(_STDOUT_FD):  # which would obey what is in it
                raise OSError(errno.ENOTTY, "standard output is a terminal; redirect it into a file")
            self.fd = os.dup(_STDOUT_FD)
            return
        found = _lstat(self._path)
        if _is_special(found):
            self.fd = _open_special(self._path, found, _OPEN)
            return
        place = _target(self._path) if found is not None and stat.S_ISLNK(found.st_mode) else self._path
        made = place.with_name(f".{secrets.token_hex(8)}.part")
        self.fd = os.open(made, _OPEN | os.O_CREAT | os.O_EXCL, _MODE)
        self._place = made, place
        if found is not None:
            before = place.stat()
            with contextlib.suppress(PermissionError):
                os.fchown(self.fd, before.st_uid, before.st_gid)
            os.fchmod(self.fd, before.st_mode & 0o777)


def write_output(option: str, path: Path, data: bytes) -> str:
    """Write all of an output; return its name, for people.

    Raises:  ConfigError: it cannot be written; a file that was there is there still.
    """
    with OutputFile(option, path) as output:
        try:
            output.write(data)
        except OSError as error:
            raise output.error(error) from error
        output.commit()
        return output.name


def check_output(option: str, path: Path) -> None:
    """Return where an output can be written later, as far as that shows without waiting for a reader.

    Raises:  ConfigError: it cannot be written.
    """
    if path == STDOUT or path.is_dir() or not _is_special(_lstat(path)):
        OutputFile(option, path).close()


def open_growing(path: Path, mode: int) -> tuple[int, Path | None]:
    """Open an output to append to it, made with this mode where it is missing; return fd and path of a regular file.

    The path is None for a device, FIFO or socket: only a regular file may be rotated. open(2) may wait: for the reader
    of a FIFO, or for a disk.

    Raises:  OSError: it cannot be opened, or is a link to what is no regular file.
    """
    if path == STDOUT:
        return os.dup(_STDOUT_FD), None
    found = _lstat(path)
    if _is_special(found):
        return _open_special(path, found, _OPEN | os.O_APPEND), None
    if found is not None and stat.S_ISLNK(found.st_mode):
        path = _target(path)
    fd = os.open(path, _OPEN | os.O_APPEND | os.O_CREAT, mode)
    return fd, path if stat.S_ISREG(os.fstat(fd).st_mode) else None


def check_replaceable(paths: Iterable[Path]) -> None:
    """Return where each is a regular file or missing, so that a file may be renamed over it.

    Raises:  OSError: one is something else.
    """
    for path in paths:
        found = _lstat(path)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EEXIST, f"{path} must be a regular file, or not be there")


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _is_special(found: os.stat_result | None) -> TypeGuard[os.stat_result]:
    return found is not None and not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode)


# The kernel follows the link, so that its rules for links in /tmp hold.
def _target(path: Path) -> Path:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise OSError(errno.ENOENT, f"{_LINK}, and leads nowhere") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, _LINK)
        return Path(f"/proc/self/fd/{fd}").readlink()
    finally:
        os.close(fd)


def _open_special(path: Path, found: os.stat_result, flags: int) -> int:
    if not stat.S_ISSOCK(found.st_mode):
        return os.open(path, flags)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        return connection.detach()
