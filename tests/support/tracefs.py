"""tracefs for this process and its children only: some machines have it nowhere mounted."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

TRACEFS = Path("/sys/kernel/tracing")
NO_TRACEFS = "tracefs cannot be mounted here: there is nothing to count the kernel's episodes with"
# include/uapi/linux/sched.h, include/uapi/linux/mount.h
_CLONE_NEWNS = 0x00020000
_MS_REC = 1 << 14
_MS_PRIVATE = 1 << 18


def mount_tracefs() -> bool:
    """Mount tracefs in a mount namespace of this process's own, unless it is mounted; return whether it is there now.

    The mount ends with the last process of the namespace. Call it before the process has threads: those that it has
    already stay where they are.
    """
    if not is_mounted() and os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS) == 0 and libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0:
            libc.mount(b"tracefs", os.fsencode(TRACEFS), b"tracefs", 0, None)
    return is_mounted()


def is_mounted() -> bool:
    """Tell whether the kernel's events are there."""
    return (TRACEFS / "events").is_dir()
