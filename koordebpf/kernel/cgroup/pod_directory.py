"""Open the directory of one pod's cgroup, and no other one's: the last look before anything is done to it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from koordebpf.errors import ActuationError, CgroupGone

_DELETED = " (deleted)"  # fs/d_path.c


def open_pod_directory(path: Path, cgroup_id: int | None, pod_names: Collection[str]) -> int:
    """Return a descriptor of the directory, once it is known to be the cgroup that was meant.

    Everything after must use this descriptor: a directory of the same name made later is never reached.

    Args:
        path: where it should be.
        cgroup_id: which one it should be; None: it is identified by its name alone.
        pod_names: the names that the pod's directory may bear; none: it may bear any.
    Raises:  CgroupGone: it is gone, or is another cgroup now. ActuationError: it bears the name of no such pod.
    Cost:    20 µs.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise CgroupGone(str(path)) from None
    try:
        if cgroup_id is not None and os.fstat(fd).st_ino != cgroup_id:
            raise CgroupGone(str(path))
        if pod_names:
            # As the kernel has it now, whatever the path said.
            name = Path(f"/proc/self/fd/{fd}").readlink().name.removesuffix(_DELETED)
            if not bears(name, pod_names):
                raise ActuationError(f"{path}: is not the cgroup of pod {next(iter(pod_names))}: it is left alone")
    except BaseException:
        os.close(fd)
        raise
    return fd


def bears(name: str, pod_names: Collection[str]) -> bool:
    """Tell whether a directory is named after one of these pods, by either cgroup driver.

    >>> bears("kubepods-besteffort-pod1_2.slice", ["1-2"]), bears("pod1-2", ["1-2"]), bears("pod1-23", ["1-2"])
    (True, True, False)
    """
    return any(
        each and (name == f"pod{each}" or name.endswith(f"-pod{each.replace('-', '_')}.slice")) for each in pod_names
    )
