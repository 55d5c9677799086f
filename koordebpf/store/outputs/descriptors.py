"""Names of the process's own descriptors: `-`, and the paths at which the kernel shows what it has open."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

STDOUT = Path("-")
_NAMED = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_FD = re.compile(r"/(?:dev|proc/(?:self|thread-self|(?P<pid>\d+)(?:/task/\d+)?))/fd/(?P<fd>\d+)")
_LINKS = 40  # as the kernel follows: include/linux/namei.h, MAXSYMLINKS


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
