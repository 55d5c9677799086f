"""CPU limits of a cgroup that is killed: lifted while it dies, restored where it survives.

A task that exits frees its memory on its own cgroup's CPU quota and weight. Lifts nothing above the pod's cgroup: a
parent's limit holds for other pods too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.errors import ActuationError, CgroupGone
from koordebpf.kernel.cgroup.freezer import write_state
from koordebpf.kernel.cgroup.pod_directory import open_pod_directory
from koordebpf.kernel.cgroup.subtree import directories, read_file
from koordebpf.kernel.io.table import field

_MOST = 32  # cgroups of a pod that are looked into; a pod has some dozens at most
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Quota and weight: the file, and what lifts it. Of cpu.max only the quota is written, so that the period stays.
_QUOTA = {1: ("cpu.cfs_quota_us", "-1"), 2: ("cpu.max", "max")}
_WEIGHT = {1: ("cpu.shares", "262144"), 2: ("cpu.weight", "10000")}  # the most, kernel/sched/sched.h, MAX_SHARES


_lifted_now: set[str] = set()  # names of pods' directories; of this process, whichever of its executors it is


def is_lifted(path: str) -> bool:
    """Tell whether a kill in progress has lifted the limits of this cgroup: of a pod, or below one."""
    return bool(_lifted_now) and not _lifted_now.isdisjoint(path.split("/"))


class CpuLimit(msgspec.Struct, frozen=True):
    """One limit as it was. `below`: the cgroup, by names below the pod's; "" is the pod's own."""

    below: str
    file: str
    text: str


class CpuPlace(msgspec.Struct, frozen=True):
    """Where a pod's CPU limits are: its directory of the cpu controller. `cgroup_id` None: known by its names alone."""

    path: Path
    version: Literal[1, 2]
    cgroup_id: int | None = None
    pod_names: tuple[str, ...] = ()


def limits_of(place: CpuPlace) -> tuple[CpuLimit, ...]:
    """Return the limits that would slow the pod's end, the pod's own first; none where it is gone.

    Cost:    60 µs for a pod with one container.
    """
    found: list[CpuLimit] = []
    try:
        with _opened(place) as top_fd:
            top = _path(top_fd)
            for number, fd in enumerate(directories(top_fd, _MOST)):
                below = _path(fd)[len(top) :].strip("/") if number else ""
                wanted = (_QUOTA, _WEIGHT) if not number else (_QUOTA,)  # what competes is the pod with its siblings
                for name, lifted in (each[place.version] for each in wanted):
                    if (text := _read(fd, name)) is not None and text.split()[0] != lifted:
                        found.append(CpuLimit(below, name, text))
    except (ActuationError, CgroupGone, OSError):
        return ()
    return tuple(found)


def lift(place: CpuPlace, limits: tuple[CpuLimit, ...]) -> bool:
    """Lift these limits; tell whether all of them could be. Parents come first, as `limits_of` has them."""
    if limits:
        _lifted_now.add(place.path.name)
    return _each(place, limits, _lifted, _kept)


def restore_limits(place: CpuPlace, limits: tuple[CpuLimit, ...]) -> bool:
    """Restore those that still are as `lift` left them; tell whether none is lifted any more, also where it is gone.

    What another process has written meanwhile stays.
    """
    is_done = _each(place, limits, _kept, _lifted)
    _lifted_now.discard(place.path.name)
    return is_done


def _each(
    place: CpuPlace,
    limits: tuple[CpuLimit, ...],
    new: Callable[[CpuLimit], str],
    expected: Callable[[CpuLimit], str],
) -> bool:
    is_done = True
    try:
        with _opened(place) as top_fd:
            for limit in limits:
                try:
                    fd = os.open(limit.below or ".", _DIRECTORY, dir_fd=top_fd)
                except OSError:
                    continue  # a container that is gone
                try:
                    text = _read(fd, limit.file)
                    if text is not None and text.split()[0] == expected(limit).split()[0]:
                        is_done &= write_state(limit.file, new(limit).encode(), fd)
                finally:
                    os.close(fd)
    except CgroupGone:
        return True
    except (ActuationError, OSError):
        return False
    return is_done


def _lifted(limit: CpuLimit) -> str:
    return next(text for by in (_QUOTA, _WEIGHT) for file, text in by.values() if file == limit.file)


def _kept(limit: CpuLimit) -> str:
    return limit.text


def _path(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


@contextmanager
def _opened(place: CpuPlace) -> Iterator[int]:
    fd = open_pod_directory(place.path, place.cgroup_id, place.pod_names)
    try:
        yield fd
    finally:
        os.close(fd)


# None: there is no such file, or the cgroup is gone.
def _read(directory_fd: int, name: str) -> str | None:
    try:
        return field(read_file(directory_fd, name).strip()) or None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return None
        raise
