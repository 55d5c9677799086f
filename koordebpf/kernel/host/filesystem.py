"""Which filesystem a path is on."""

from __future__ import annotations

import os
from pathlib import Path

from koordebpf.kernel.proc.mounts import MOUNTINFO, read_mounts


def filesystem_of(path: Path, mounts: Path = MOUNTINFO) -> str | None:
    """Return the type of the filesystem that `path` is on, as ext4; None: not known, as on btrfs.

    Source:  proc_pid_mountinfo(5), the device.
    """
    try:
        device = path.stat().st_dev
        table = read_mounts(mounts)
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((each.fstype for each in table if each.device == wanted), None)
