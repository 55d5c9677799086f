"""Notifies pods of soft evictions from one thread, however long the disk takes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from koordebpf.kernel.io.worker import Worker
from koordebpf.policy.requests import SoftNotice

NOTICE = "soft_eviction_notify"
_SEPARATOR = "@@__@@"
_MODE = 0o777  # the pod's user is not known
_FILE_MODE = 0o644
_log = logging.getLogger(__name__)
_QUEUED = 200  # Why: a notice for each pod of a node; what does not fit is sent in the next round
_CLOSE_S = 1.0  # Why: as for evictions (act/evict/api.py)


# The directories in which pods find the notice of a soft eviction: one for each pod that wants it.
#
# A pod mounts its own directory and may write there what it likes, so that nothing below it is trusted: no link is
# followed, and no file is opened that could block or that is not a plain one.
#
# Source: katalyst-core pkg/agent/evictionmanager/podnotifier.


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


class PodNotifier:
    """Keeps the directories of pods that want a notice, and writes it. `sent` and `failed` count notices."""

    def __init__(self, root: Path) -> None:
        self._folders = NoticeFolders(root)
        self._worker: Worker[Callable[[], None]] = Worker("pod-notices", self._do, most=_QUEUED)
        self._kept: frozenset[tuple[str, str]] | None = None
        self._ended: deque[tuple[SoftNotice, str | None]] = deque(maxlen=_QUEUED)
        self._is_said = False
        self.sent = 0
        self.failed = 0

    def keep(self, pods: Collection[tuple[str, str]]) -> None:
        """Say which pods want notices, by namespace and name. Does not wait."""
        wanted = frozenset(pods)
        if wanted != self._kept and self._worker.submit(lambda: self._folders.keep(wanted)):
            self._kept = wanted

    def notify(self, notice: SoftNotice) -> None:
        """Notify one pod. Does not wait."""
        if not self._worker.submit(lambda: self._notify(notice)):
            self._ended.append((notice, "the disk has not taken the notices before it"))
            self.failed += 1

    def take_ended(self) -> list[tuple[SoftNotice, str | None]]:
        """Return the notices that ended since the last call, and why one failed; None: it was written."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def close(self) -> None:
        """Stop the thread; one that hangs is left."""
        if not self._worker.close(_CLOSE_S):
            _log.warning("the disk has not answered: the last notices of soft evictions are left out")

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, ValueError) as error:
            if not self._is_said:
                _log.warning("no notice of a soft eviction: %s", error)
            self._is_said = True
        else:
            self._is_said = False

    def _notify(self, notice: SoftNotice) -> None:
        try:
            self._folders.notify(notice.namespace, notice.name, datetime.now(UTC).isoformat())
        except Exception as error:
            self._ended.append((notice, str(error)))
            self.failed += 1
            raise
        self._ended.append((notice, None))
        self.sent += 1
        _log.info(
            "%s/%s is notified: %s asks it to leave: %s", notice.namespace, notice.name, notice.plugin, notice.reason
        )
