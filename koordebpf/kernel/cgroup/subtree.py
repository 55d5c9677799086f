"""A cgroup with all that is below it, by descriptors: no path is too long for it, and no depth too great.

Who may write a cgroup file system, as a privileged container may, can make any number of levels.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from koordebpf.errors import KoordebpfError

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_EMPTY_NLINK = 2  # of a directory: its name and its own dot
_UP_AT_ONCE = 1024  # "../" so often is shorter than PATH_MAX
_READ_BYTES = 1 << 16
_MOST_LOOKED_INTO = 1024
_MOST_POD_DIRECTORIES = 256
_MOST_LIST_BYTES = 1 << 18  # 30,000 tasks. Why: what a tenant makes beyond costs this agent nothing
_TASK_LISTS = ("tasks", "cgroup.threads")  # on cgroup v1 and v2
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)


def directories(top_fd: int, most: int | None = None) -> Iterator[int]:
    """Yield a descriptor of the directory and of each one below it, parents first; each is good until the next one.

    What vanishes on the way is left out, and so is what is beyond `most` of them.

    Raises:  OSError: what the kernel says of a directory that is there.
    Cost:    20 µs each, and 30 µs where it has others below it; two descriptors at a time.
    """
    here = os.open(".", _DIRECTORY, dir_fd=top_fd)
    seen = 0
    above: list[tuple[int, list[str]]] = []  # from the top to here: inode, and the children that are still to come
    try:
        while True:
            yield here
            seen += 1
            stat = os.fstat(here)
            above.append((stat.st_ino, [] if stat.st_nlink == _EMPTY_NLINK else _children(here)))
            child = None
            while child is None:
                ups = 0
                while above and not above[-1][1]:
                    above.pop()
                    ups += 1
                if not above or (most is not None and seen >= most):
                    return
                if ups:
                    _ascend(here, ups)
                    if os.fstat(here).st_ino != above[-1][0]:
                        return  # moved meanwhile: a caller that needs all walks again
                child = _opened(above[-1][1].pop(), here)
            os.close(here)
            here = child
    finally:
        os.close(here)


def pids(top_fd: int, most: int | None = None) -> set[int] | None:
    """Return the processes of a subtree, 0 for those of a pid namespace that is not seen from here; None: it is gone.

    Args:
        top_fd: its directory.
        most: so many directories are looked into at most.
    """
    found: set[int] = set()
    is_top = True
    try:
        for fd in directories(top_fd, most):
            try:
                found.update(map(int, read_file(fd, "cgroup.procs").split()))
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                if is_top:
                    return None
            is_top = False
    except OSError as error:
        if is_top and error.errno in _GONE:
            return None
        raise
    return found


def may_hold(root: Path, pid: int) -> bool:
    """Tell whether a process is in a cgroup or below it, or may be, where it has too many; not where it is gone.

    Cost:    60 ms at most.
    """
    wanted = str(pid).encode()
    top_fd = _opened(os.fspath(root), None)
    if top_fd is None:
        return False
    try:
        for number, fd in enumerate(directories(top_fd, _MOST_LOOKED_INTO)):
            try:
                if wanted in read_file(fd, "cgroup.procs").split():
                    return True
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            if number == _MOST_LOOKED_INTO - 1:
                return True
        return False
    finally:
        os.close(top_fd)


def has_process(root: Path, version: Literal[1, 2]) -> bool:
    """Tell whether a process is in a cgroup or below it, or may be, where v1 has too many; not where it is gone.

    Source:  v2 cgroup.events, populated; v1 cgroup.procs of each directory.
    Cost:    20 µs, on v1 for each directory down to the first that has one.
    """
    top_fd = _opened(os.fspath(root), None)
    if top_fd is None:
        return False
    try:
        if version == 2:
            return b"populated 1" in _content(top_fd, "cgroup.events")
        return any(
            number == _MOST_LOOKED_INTO or _content(fd, "cgroup.procs")
            for number, fd in enumerate(directories(top_fd, _MOST_LOOKED_INTO), 1)
        )
    finally:
        os.close(top_fd)


def tasks_of(directory: Path) -> set[int]:
    """Return the tasks (threads) of a pod's cgroup and those below it, of many the first; none where it is gone."""
    try:
        top_fd = os.open(directory, _DIRECTORY)
    except OSError:
        return set()
    found: set[int] = set()
    try:
        for each in directories(top_fd, _MOST_POD_DIRECTORIES):
            found |= _listed(each)
    except (OSError, KoordebpfError):
        return found
    finally:
        os.close(top_fd)
    return found - {0}  # 0: of a pid namespace that is not seen from here


def _listed(directory: int) -> set[int]:
    for name in _TASK_LISTS:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            continue
        try:
            return task_numbers(fd)
        except OSError:  # cgroup v2 has no threads to show of a domain with threaded children
            return set()
        finally:
            os.close(fd)
    return set()


def task_numbers(fd: int) -> set[int]:
    """Return the numbers in an open list of tasks, one a line, of many the first 30,000.

    Raises:  OSError: what the kernel says.
    """
    data = b""
    while len(data) < _MOST_LIST_BYTES and (part := os.pread(fd, _READ_BYTES, len(data))):
        data += part
    whole = data[: data.rfind(b"\n") + 1]
    return {int(line) for line in whole.split() if line.isdigit()}


def read_file(directory_fd: int, name: str) -> bytes:
    """Return what a file of an open directory holds; nothing where it is a threaded cgroup's that lists no process."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        parts = []
        try:
            while part := os.read(fd, _READ_BYTES):
                parts.append(part)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # a threaded v2 cgroup: its domain lists these processes
                raise
        return b"".join(parts)
    finally:
        os.close(fd)


# Nothing where the directory was removed meanwhile.
def _content(directory_fd: int, name: str) -> bytes:
    try:
        return read_file(directory_fd, name)
    except OSError as error:
        if error.errno in _GONE:
            return b""
        raise


def _children(fd: int) -> list[str]:
    try:
        with os.scandir(fd) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise


def _opened(name: str, parent_fd: int | None) -> int | None:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent_fd)
    except OSError as error:
        if error.errno in _GONE:
            return None  # an emptied child may be removed at any moment
        raise


# The descriptor keeps its number, and leads upwards.
def _ascend(fd: int, levels: int) -> None:
    while levels:
        step = min(levels, _UP_AT_ONCE)
        up = os.open("../" * step, _DIRECTORY, dir_fd=fd)
        os.dup2(up, fd, inheritable=False)
        os.close(up)
        levels -= step
