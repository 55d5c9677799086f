"""inotify through libc: watches on directories and files, and their events.

Three system calls and one record, by ctypes: a package for it (inotify_simple) does the same and no more, and recursion
over a cgroup tree needs rules of its own (`cgroup_tree`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

import msgspec

# include/uapi/linux/inotify.h
IN_MODIFY = 0x00000002
IN_MOVED_FROM = 0x00000040
IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
IN_DELETE = 0x00000200
IN_Q_OVERFLOW = 0x00004000
IN_IGNORED = 0x00008000
IN_ONLYDIR = 0x01000000
IN_ONESHOT = 0x80000000
IN_ISDIR = 0x40000000
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC

MAX_USER_WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")

_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16
# Why 16: 1 MiB or 20,000 events in one `read`; the kernel's queue holds fs.inotify.max_queued_events, 16,384.
_READS = 16


class InotifyEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of the watch `wd`, about its child `name` where it has one; `cookie` joins both ends of a rename."""

    wd: int
    mask: int
    cookie: int
    name: str


class Inotify:
    """One inotify instance; closing it removes every watch."""

    def __init__(self) -> None:
        """Open the instance.

        Raises:  OSError: EMFILE: fs.inotify.max_user_instances is used up.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        self._fd = self._libc.inotify_init1(_IN_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "inotify_init1")

    def fileno(self) -> int:
        """Return the fd, readable (EPOLLIN) when there are events."""
        return int(self._fd)

    def add(self, path: str, mask: int) -> int:
        """Watch a file or directory; return the watch. One that is watched already keeps its number.

        Raises:  OSError: ENOSPC: fs.inotify.max_user_watches is used up. ENOENT: it is gone.
        """
        wd = self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if wd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        return int(wd)

    def remove(self, wd: int) -> None:
        """Remove a watch; one that the kernel removed already is no error."""
        if self._libc.inotify_rm_watch(self._fd, wd) < 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"inotify watch {wd}")

    def read(self) -> list[InotifyEvent]:
        """Return the events that are there, oldest first, at most 1 MiB of them; never waits."""
        events: list[InotifyEvent] = []
        for _ in range(_READS):
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                break
            offset = 0
            while offset < len(data):
                wd, mask, cookie, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size
                events.append(InotifyEvent(wd, mask, cookie, os.fsdecode(data[offset : offset + length].rstrip(b"\0"))))
                offset += length
        return events

    def close(self) -> None:
        """Close the instance; twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
