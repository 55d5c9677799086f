"""The directories in which pods find the notice of a soft eviction: one for each pod that wants it.

A pod mounts its own directory and may write there what it likes, so that nothing below it is trusted: no link is
followed, and no file is opened that could block or that is not a plain one.

Source: katalyst-core pkg/agent/evictionmanager/podnotifier.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

NOTICE = "soft_eviction_notify"
_SEPARATOR = "@@__@@"
_MODE = 0o777  # the pod's user is not known
_FILE_MODE = 0o644


class NoticeFolders:
    """One directory a pod below `root`, which must belong to root alone.

    Raises:  OSError: each of the calls.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, pods: Collection[tuple[str, str]]) -> None:
        """Make the directories of these pods, by namespace and name, and remove those of others."""
        wanted = {_folder(*pod) for pod in pods}
        if wanted:
            self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        there = {path.name for path in self._root.iterdir()} if self._root.exists() else set()
        for name in wanted - there:
            path = self._root / name
            path.mkdir()
            path.chmod(_MODE)
        for name in there - wanted:
            if _SEPARATOR in name and not (self._root / name).is_symlink():
                shutil.rmtree(self._root / name, ignore_errors=True)  # which follows no link

    def notify(self, namespace: str, name: str, text: str) -> None:
        """Write a text into a pod's file, in place of what is in it."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self._root / _folder(namespace, name), flags)
        try:
            _write(folder, text)
        finally:
            os.close(folder)


def _folder(namespace: str, name: str) -> str:
    if "/" in name or "/" in namespace:
        raise ValueError(f"{namespace}/{name} is no name of a pod")
    return f"{name}{_SEPARATOR}{namespace}"


# The file is not truncated before it is known to be a plain one with this name alone.
def _write(folder: int, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(NOTICE, flags, _FILE_MODE, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(f"{NOTICE} is no plain file")
        os.ftruncate(file, 0)
        os.write(file, text.encode())
        with contextlib.suppress(OSError):
            os.fchmod(file, _FILE_MODE)
    finally:
        os.close(file)
