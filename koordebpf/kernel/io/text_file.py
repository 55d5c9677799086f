"""Small files of cgroupfs, sysfs and /proc: read and written as the file that was read before, or kept open.

A kept file costs 2 µs a read, where opening it costs 15.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.table import field, raw, shown

_MAX_OPEN = 4096  # Why: 500 pods of 3 containers are 2,000; the agent has raised its limit of fds by then
_FILE_BYTES = 1 << 15  # the longest is every other one of 8,192 CPUs: 20 KB


class KeptFile(Closing):
    """Closes the fd that the class built on it has opened."""

    _fd: int

    def close(self) -> None:
        """Close the fd; twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ProcFile(KeptFile):
    """A file of procfs; `feature` is what is missing without it."""

    def __init__(self, path: Path, feature: str) -> None:
        """Open the file.

        Raises:  SupportError: there is none.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SupportError(feature, f"{path}: {error.strerror}", "Mount procfs at /proc") from None


class KeptFiles(Closing):
    """The same for several files of one thing."""

    _fds: dict[str, int]  # by name

    def close(self) -> None:
        """Close every fd."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


class KernelText(msgspec.Struct, frozen=True, gc=False):
    """What a file holds, to the byte. A cgroup that is removed and made again has other inodes."""

    data: bytes
    inode: int

    @property
    def text(self) -> str:
        """The same as text; bytes that are no UTF-8 are surrogates, and written back as the same bytes."""
        return field(self.data)


def read_kernel_file(path: Path) -> KernelText:
    """Return the file's text and inode.

    Raises:  CgroupGone: its directory is gone. OSError: ENOENT where the directory has no such file. KernelFileError:
             too long.
    Cost:    15 µs.
    """
    fd = _open(path, os.O_RDONLY)
    try:
        return KernelText(_read(fd, path), os.fstat(fd).st_ino)
    except OSError as error:
        raise _gone_or(error, path) from None
    finally:
        os.close(fd)


class OpenKernelFiles:
    """Files of cgroups that are read again and again, kept open. A file whose cgroup was removed answers ENODEV.

    Cost:    2 µs a read, where opening costs 15; an fd a file.
    """

    def __init__(self) -> None:
        self._open: dict[Path, tuple[int, int]] = {}  # fd and inode

    def read(self, path: Path) -> KernelText:
        """Return the file's text and inode.

        Raises:  as `read_kernel_file`.
        """
        kept = self._open.get(path)
        if kept is not None:
            fd, inode = kept
            try:
                return KernelText(_read(fd, path), inode)
            except OSError:
                self.close(path)  # another cgroup may have its name now
        if len(self._open) >= _MAX_OPEN:
            return read_kernel_file(path)
        fd = _open(path, os.O_RDONLY)
        try:
            found = KernelText(_read(fd, path), os.fstat(fd).st_ino)
        except BaseException as error:
            os.close(fd)
            raise (_gone_or(error, path) if isinstance(error, OSError) else error) from None
        self._open[path] = (fd, found.inode)
        return found

    def close(self, path: Path) -> None:
        """Keep a file open no longer."""
        if (kept := self._open.pop(path, None)) is not None:
            os.close(kept[0])

    def close_all_but(self, paths: Collection[Path]) -> None:
        """Keep only these open."""
        for path in self._open.keys() - set(paths):
            self.close(path)


class Overtaken(Exception):
    """Another process wrote the file since it was looked at; nothing was written."""


def write_kernel_file(
    path: Path,
    texts: Sequence[str],
    inode: int | None,
    wrote: Callable[[str], object] = lambda _: None,
    may_write: Callable[[str], bool] | None = None,
) -> str:
    """Write each text with one write(2) to the file that has this inode, None: any; return what it holds then.

    `wrote` gets each text that was written: what follows may fail. `may_write` gets what the file holds right before.

    Raises:  CgroupGone: it is gone, or another one has its name. OSError: what the kernel says against it.
             Overtaken: `may_write` says no.
    """
    # Since 6.16 (commit c8e6002bd611, "memcg: introduce non-blocking limit setting option") such a write of memory.high
    # leaves the reclaim to the tasks that are above it; before, the writer waits for it.
    fd = _open(path, os.O_RDWR | (os.O_NONBLOCK if path.name == "memory.high" else 0))
    try:
        if inode is not None and os.fstat(fd).st_ino != inode:
            raise CgroupGone(str(path.parent))
        if may_write is not None and not may_write(field(_read(fd, path))):
            raise Overtaken(str(path))
        for text in texts:
            os.write(fd, raw(text))
            wrote(text)
        return field(_read(fd, path))
    except OSError as error:
        # ENODEV may mean the device that the text names, too: a removed cgroup answers so to a read as well.
        raise (error if _can_be_read(fd) else _gone_or(error, path)) from None
    finally:
        os.close(fd)


def _can_be_read(fd: int) -> bool:
    try:
        os.pread(fd, 1, 0)
    except OSError:
        return False
    return True


def _read(fd: int, path: Path) -> bytes:
    data = os.pread(fd, _FILE_BYTES, 0)
    if len(data) >= _FILE_BYTES:
        raise KernelFileError(str(path), shown(data), f"must be under {_FILE_BYTES} bytes")
    return data


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise _gone_or(error, path) from None


def _gone_or(error: OSError, path: Path) -> Exception:
    if error.errno == errno.ENODEV or (error.errno == errno.ENOENT and not path.parent.is_dir()):
        return CgroupGone(str(path.parent))
    return error
