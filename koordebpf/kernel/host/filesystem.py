"""Which filesystem a path is on."""

from __future__ import annotations

import os
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def filesystem_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the filesystem that `path` is on, as ext4; None: not known, as on btrfs.

    Source:  proc_pid_mountinfo(5): the device is the third field, the type the first after a lone hyphen.
    """
    try:
        device = path.stat().st_dev
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [wanted]:
            return after.split(" ", 1)[0] or None
    return None
