"""Chains of directories that no path is long enough for, made and removed one level at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NAME = "n"


def nest(top: Path, levels: int) -> int:
    """Make a chain of so many directories, each within the one before; return a descriptor of the last one."""
    here = os.open(top, _DIRECTORY)
    for _ in range(levels):
        os.mkdir(_NAME, dir_fd=here)
        below = os.open(_NAME, _DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    return here


def remove_nest(top: Path, timeout_s: float = 10) -> None:
    """Remove such a chain, the last one first; what runs in it has to be dead."""
    here, levels = os.open(top, _DIRECTORY), 0
    try:
        while True:
            try:
                below = os.open(_NAME, _DIRECTORY, dir_fd=here)
            except FileNotFoundError:
                break
            os.close(here)
            here, levels = below, levels + 1
        deadline = time.monotonic() + timeout_s
        while levels:
            above = os.open("..", _DIRECTORY, dir_fd=here)
            os.close(here)
            here = above
            while True:
                try:
                    os.rmdir(_NAME, dir_fd=here)
                    break
                except OSError:  # EBUSY: a process is out of cgroup.procs before it is out of the cgroup
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
            levels -= 1
    finally:
        os.close(here)


def join(directory_fd: int, pid: int) -> None:
    """Move a process into the cgroup behind a descriptor."""
    fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        os.write(fd, str(pid).encode())
    finally:
        os.close(fd)
