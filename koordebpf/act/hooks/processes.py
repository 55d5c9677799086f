"""Which processes are in a container, as far as this agent sees them."""

from __future__ import annotations

import os
from pathlib import Path

from koordebpf.errors import KoordebpfError
from koordebpf.kernel.cgroup.subtree import pids

_MOST_DIRECTORIES = 256  # Why: an init system makes some tens; what a tenant makes beyond costs this agent nothing


def processes_in(directory: Path) -> tuple[int, set[int]] | None:
    """Return the inode of a cgroup's directory and the processes in it and below; None: it is gone.

    Cost:    40 µs, and 20 for each directory below it.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = pids(fd, _MOST_DIRECTORIES)
        return None if found is None else (os.fstat(fd).st_ino, found - {0})
    except (OSError, KoordebpfError):
        return None
    finally:
        os.close(fd)
