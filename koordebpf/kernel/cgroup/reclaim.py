"""Ask the kernel to take memory from one cgroup."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.cgroup.pod_directory import open_pod_directory
from koordebpf.units import MIB

_FILE = "memory.reclaim"
_PIECE_BYTES = 16 * MIB  # a write returns when it is done: what is asked at once cannot be called off
_GONE = (errno.ENOENT, errno.ENODEV)


def reclaim(
    cgroup: Path,
    cgroup_id: int,
    size_bytes: int,
    is_enough: Callable[[], bool],
    pod_names: Collection[str] = (),
    *,
    swappiness: int | None = None,
) -> int:
    """Reclaim from a cgroup and what is below it, piece by piece; return how much the kernel took.

    Page cache first; anonymous memory only as far as there is swap. It ends where a piece cannot be reclaimed, or with
    `is_enough`. `pod_names` are those that the directory may bear, none: any. `swappiness` 0: file memory alone.

    Source:  memory.reclaim, cgroup v2 since Linux 5.19: write-only, EAGAIN where less than asked was reclaimed;
             swappiness= since 6.11.
    Raises:  CgroupGone: it is gone or another one. ActuationError: it is another pod's. SupportError: no such file.
             OSError: what the kernel says.
    Cost:    the calling thread's time, until it is done: 16 MiB of clean page cache take milliseconds, dirty ones
             their disk's time.
    """
    directory_fd = open_pod_directory(cgroup, cgroup_id, pod_names)
    try:
        try:
            fd = os.open(_FILE, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory_fd)
        except FileNotFoundError:
            if cgroup.is_dir():
                raise SupportError(_FILE, "no such file", "It needs cgroup v2 and Linux 5.19") from None
            raise CgroupGone(str(cgroup)) from None
    finally:
        os.close(directory_fd)
    taken_bytes, how = 0, "" if swappiness is None else f" swappiness={swappiness}"
    try:
        while taken_bytes < size_bytes and not is_enough():
            piece_bytes = min(_PIECE_BYTES, size_bytes - taken_bytes)
            os.write(fd, f"{piece_bytes}{how}".encode())
            taken_bytes += piece_bytes
    except BlockingIOError:
        pass  # EAGAIN: no more can be reclaimed
    except OSError as error:
        if error.errno == errno.EINVAL and how:
            raise SupportError(f"{_FILE} with{how}", "the kernel refuses it", "It needs Linux 6.11") from None
        raise _gone_or(error, cgroup) from None
    finally:
        os.close(fd)
    return taken_bytes


def _gone_or(error: OSError, cgroup: Path) -> Exception:
    return CgroupGone(str(cgroup)) if error.errno in _GONE else error
