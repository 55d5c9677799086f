"""Sockets of plugins outside the process, as files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_MOST_SOCKETS = 1000  # Why: a directory that fills up must not make the agent ask for ever


def sockets_below(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the sockets below a directory, with what tells one from another of the same name; none: it is not there.

    Directories below count too; what begins with a dot does not, nor does what a link leads to.

    Cost:    10 µs without the directory.
    """
    found: dict[Path, tuple[int, int]] = {}
    for directory, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for name in names:
            path = Path(directory) / name
            if name.startswith(".") or len(found) >= _MOST_SOCKETS:
                continue
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                found[path] = status.st_ino, status.st_mtime_ns
    return found
