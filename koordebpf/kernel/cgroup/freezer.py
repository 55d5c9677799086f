"""The cgroup freezer: freeze, thaw, find what is frozen. On v1 a hierarchy of its own, on v2 a file of each cgroup."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from koordebpf.kernel.cgroup.subtree import directories

_V1_STATE, _V2_STATE = "freezer.state", "cgroup.freeze"


def thaw_subtree(directory_fd: int) -> bool:
    """End the freeze of a v1 cgroup and of all below it; tell whether no task there can be frozen any more.

    A level below may have been frozen by itself, as a paused container is.
    """
    is_thawed = True
    try:
        for each in directories(directory_fd):
            is_thawed &= write_state(_V1_STATE, b"THAWED", each)
    except OSError:
        return False
    return is_thawed


def is_frozen(path: Path, version: Literal[1, 2]) -> bool:
    """Tell whether this cgroup itself is set to freeze, whatever its ancestors are; one that is gone was not.

    Source:  v1 freezer.self_freezing (since v3.8), v2 cgroup.freeze (since v5.2).
    """
    try:
        return (path / ("freezer.self_freezing" if version == 1 else _V2_STATE)).read_bytes().strip() == b"1"
    except OSError:
        return False


def thaw(path: Path, version: Literal[1, 2]) -> bool:
    """End the freeze of this cgroup, and no other one's; tell whether that was possible."""
    return write_state(path / _V1_STATE, b"THAWED") if version == 1 else write_state(path / _V2_STATE, b"0")


def thaw_at(directory_fd: int, version: Literal[1, 2]) -> bool:
    """End the freeze of the cgroup behind a descriptor, and no other one's; tell whether that was possible."""
    return write_state(*((_V1_STATE, b"THAWED") if version == 1 else (_V2_STATE, b"0")), directory_fd)


def write_state(state: Path | str, value: bytes, directory_fd: int | None = None) -> bool:
    """Write a cgroup's file, of an open directory by its name; tell whether the kernel took it."""
    try:
        fd = os.open(state, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    except OSError:
        return False
    try:
        os.write(fd, value)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
