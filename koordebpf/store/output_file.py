"""Every file that an option names for output is opened here, so that one rule holds for all of them.

`-` is standard output. A missing path or a regular file is replaced whole; a log that grows is appended to. The target
of a link is written if it is a regular file, and the link stays; any other link is refused, but a log that grows makes
the missing file that a link names, which logrotate may have moved away. Devices, FIFOs and sockets are written to, and
never replaced or removed.

/dev/stdout, /dev/stderr, /dev/fd/N and /proc/self/fd/N are the process's own descriptors. They, and links to them, are
written to as `-` is, whatever they lead to. Another user's file in a folder that all may write to is refused, as with
fs.protected_regular, also where that is off: he would read what is written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeGuard

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.closing import Closing
from koordebpf.store.line_sink import write_whole

STDOUT = Path("-")
_NAMED = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_FD = re.compile(r"/(?:dev|proc/(?:self|thread-self|(?P<pid>\d+)(?:/task/\d+)?))/fd/(?P<fd>\d+)")
_LINKS = 40  # as the kernel follows: include/linux/namei.h, MAXSYMLINKS
_RULE = "must be a file that can be written"
_LINK = "a link must lead to a regular file"
_OPEN = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY
READER_S = 10.0  # Why: a person who starts the reader after it
_NO_READER_S = 0.01  # between looks for one
_MODE = 0o600  # Why: names of pods are in it, and those are for the one who asked


def named_descriptor(path: Path) -> int | None:
    """Return the descriptor that a path names by its letters, without a look at any disk; None: it names none.

    >>> [named_descriptor(Path(each)) for each in ("-", "/dev/stderr", "/dev/fd/3", "/dev/null")]
    [1, 2, 3, None]
    """
    if (fd := _NAMED.get(str(path))) is not None:
        return fd
    found = _FD.fullmatch(str(path))
    return int(found["fd"]) if found and (found["pid"] is None or _is_own(found["pid"])) else None


def own_descriptor(path: Path) -> int | None:
    """Return the same of a path that is such a name, or a link that leads through one.

    Raises:  OSError: the kernel does not follow the link, as another user's in /tmp.
    """
    given, is_link = path, False
    for _ in range(_LINKS):
        # A folder on the way may be a link too.
        path = path if named_descriptor(path) is not None else Path(os.path.realpath(path.parent), path.name)
        if (fd := named_descriptor(path)) is not None:
            if is_link:
                os.close(os.open(given, os.O_PATH | os.O_CLOEXEC))
            return fd
        if not path.is_symlink():
            return None
        path, is_link = path.parent / path.readlink(), True
    return None


def descriptor_name(fd: int) -> str:
    """Return its name, for people."""
    return {1: "standard output", 2: "standard error"}.get(fd, f"descriptor {fd}")


def duplicate(fd: int) -> int:
    """Return a descriptor of one's own of what another one writes to.

    Raises:  OSError: it is not open, or only for reading.
    """
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    except OSError as error:
        raise OSError(error.errno, f"{descriptor_name(fd)} is not open") from error
    if flags & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, f"{descriptor_name(fd)} is open for reading alone")
    return os.dup(fd)


def _is_own(pid: str) -> bool:
    return pid == Path("/proc/self").readlink().name


class OutputFile(Closing):
    """An output that is open: standard output, a new file, or what is no regular file.

    A new file lies hidden beside the path until `commit` puts it in place of what is there; `close` without it removes
    it.

    Args:
        option: that names it, for errors.
        path: `-` for standard output.
        reader_s: how long to wait for the reader of a FIFO or socket.

    Raises:  ConfigError: it cannot be written; what is there stays as it is.
    """

    def __init__(self, option: str, path: Path, *, reader_s: float = READER_S) -> None:
        self.name = "standard output" if path == STDOUT else str(path)
        self._place: tuple[Path, Path] | None = None  # the new file and its place, until it is there
        self._option, self._path, self._reader_s = option, path, reader_s
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
        if (own := own_descriptor(self._path)) is not None:
            if os.isatty(own):  # which would obey what is in it
                raise OSError(errno.ENOTTY, f"{descriptor_name(own)} is a terminal; redirect it into a file")
            self.fd = duplicate(own)
            return
        found = _lstat(self._path)
        if _is_special(found):
            self.fd = _open_special(self._path, found, _OPEN, self._reader_s)
            return
        place = _target(self._path) if found is not None and stat.S_ISLNK(found.st_mode) else self._path
        before = None if found is None else place.lstat()
        if before is not None:
            _check_owner(place, before)
        made = place.with_name(f".{secrets.token_hex(8)}.part")
        self.fd = os.open(made, _OPEN | os.O_CREAT | os.O_EXCL, _MODE)
        self._place = made, place
        if before is not None:
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
    if is_descriptor(option, path) or path.is_dir() or not _is_special(_lstat(path)):
        OutputFile(option, path).close()


def open_growing(path: Path, mode: int) -> tuple[int, Path | None]:
    """Open an output to append to it, made with this mode where it is missing; return fd and path of a regular file.

    The path is None for a descriptor of one's own, a device, FIFO or socket: only a regular file may be rotated.
    open(2) may wait: for the reader of a FIFO, or for a disk.

    Raises:  OSError: it cannot be opened, is another user's, or is a link to what is no regular file.
    """
    if (own := own_descriptor(path)) is not None:
        return duplicate(own), None
    found = _lstat(path)
    if _is_special(found):
        return _open_special(path, found, _OPEN | os.O_APPEND), None
    if found is not None and stat.S_ISLNK(found.st_mode):
        path = _target(path, may_be_missing=True)
    fd = os.open(path, _OPEN | os.O_APPEND | os.O_CREAT, mode)
    opened = os.fstat(fd)
    if not stat.S_ISREG(opened.st_mode):
        return fd, None
    try:
        _check_owner(path, opened)
    except OSError:
        os.close(fd)
        raise
    return fd, path


def is_descriptor(option: str, path: Path) -> bool:
    """Tell whether a path is one of the process's own descriptors, or a link to one.

    Raises:  ConfigError: the kernel does not follow the link.
    """
    try:
        return own_descriptor(path) is not None
    except OSError as error:
        raise ConfigError(option, str(path), f"{_RULE}: {error.strerror}") from error


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


# The kernel follows the link, so that its rules for links in /tmp hold; where nothing is at the end, it has followed it
# that far.
def _target(path: Path, *, may_be_missing: bool = False) -> Path:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError as error:
        missing = Path(os.path.realpath(path))
        if may_be_missing and missing.parent.is_dir():
            return missing
        raise OSError(errno.ENOENT, f"{_LINK}, and leads nowhere") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, _LINK)
        return Path(f"/proc/self/fd/{fd}").readlink()
    finally:
        os.close(fd)


# Source: fs/namei.c, may_create_in_sticky.
def _check_owner(path: Path, found: os.stat_result) -> None:
    folder = path.parent.stat()
    is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    if is_shared and found.st_uid not in (os.geteuid(), folder.st_uid):
        raise OSError(errno.EACCES, "it is another user's file, in a folder that all may write to")


def _open_special(path: Path, found: os.stat_result, flags: int, reader_s: float | None = None) -> int:
    if stat.S_ISSOCK(found.st_mode):
        return _connect(path, reader_s)
    if reader_s is None or not stat.S_ISFIFO(found.st_mode):
        return os.open(path, flags)
    until_s = time.monotonic() + reader_s
    while True:
        try:
            fd = os.open(path, flags | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= until_s:
                raise OSError(errno.ENXIO, f"it is a FIFO without a reader for {reader_s:.0f} s") from error
            time.sleep(_NO_READER_S)
        else:
            os.set_blocking(fd, True)
            return fd


def _connect(path: Path, reader_s: float | None) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(reader_s)
        try:
            connection.connect(str(path))
        except TimeoutError as error:
            raise OSError(errno.ETIMEDOUT, f"it is a socket that has not answered for {reader_s:.0f} s") from error
        connection.settimeout(None)
        return connection.detach()
