"""Reads and writes models of prediction in a thread. It may hang with its disk; the loop does not wait for it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from koordebpf.errors import ConfigError, os_reason
from koordebpf.jobs.prediction.checkpoint import ModelCheckpoint, decode_checkpoint
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.regular_file import make_folder, open_part, read_regular_file
from koordebpf.kernel.io.worker import Worker

_PART: Final = ".tmp"  # koordlet's name of a file that is not complete; both remove such files
_ASIDE: Final = ".corrupt"
_MOST_BYTES: Final = 64 << 10  # Why: 363 buckets are 5 KiB
_WAITING: Final = 100  # Why: saves are minutes apart; on a disk that hangs the newest models are saved once it is back
_MOST_FILES: Final = 20_000  # Why: more than ten times what a node can run
_UID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # a UID of a static pod comes from a file


# Models of prediction in files, one for each UID, as koordlet keeps them; and koordlet's own, which are only read.
#
# A file is complete or not there: it is written beside its place, synced, and renamed.


class Found(msgspec.Struct, frozen=True):
    """What the folders hold of the UIDs that were asked for, by UID; and a sentence for each file that is unusable."""

    checkpoints: Mapping[str, ModelCheckpoint]
    problems: tuple[str, ...] = ()


class CheckpointFolder:
    """Owns the files of one folder. koordlet may read it and may have written it.

    Args:
        path: made at the first write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, uid: str, content: bytes) -> None:
        """Put the content in place of the one before.

        Raises:  OSError: it could not be written; the one before is still there.
        """
        if not is_file_name(uid):
            return
        make_folder(self._path)
        part = self._path / (uid + _PART)
        fd = open_part(part)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path / uid)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def sync(self) -> None:
        """Let what was renamed outlive a crash of the machine."""
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def remove(self, uid: str) -> None:
        """Remove the file of a UID, if there is one."""
        if is_file_name(uid):
            with contextlib.suppress(OSError):
                (self._path / uid).unlink()

    def load(self, wanted: frozenset[str]) -> Found:
        """Return what is there of these UIDs, and remove what else is there.

        A file that cannot be read is set aside as UID.corrupt, until the next time.
        """
        for name in list(_names(self._path)):
            if name not in wanted:
                with contextlib.suppress(OSError):
                    (self._path / name).unlink()
        found = read_checkpoints(self._path, wanted)
        for uid in wanted - found.checkpoints.keys():
            with contextlib.suppress(OSError):
                (self._path / uid).replace(self._path / (uid + _ASIDE))
        return found


def read_checkpoints(path: Path, wanted: frozenset[str]) -> Found:
    """Return what a folder holds of these UIDs; nothing is changed in it."""
    checkpoints: dict[str, ModelCheckpoint] = {}
    problems: list[str] = []
    for uid in _names(path):
        if uid not in wanted or not is_file_name(uid):
            continue
        try:
            checkpoints[uid] = decode_checkpoint(read_regular_file(path / uid, _MOST_BYTES), uid, str(path / uid))
        except ConfigError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path / uid}: {os_reason(error)}")
    return Found(checkpoints, tuple(problems))


def newest(*found: Found) -> Found:
    """Return of each UID the checkpoint that was written last; of two alike the first."""
    checkpoints: dict[str, ModelCheckpoint] = {}
    for each in found:
        for uid, kept in each.checkpoints.items():
            known = checkpoints.get(uid)
            if known is None or (kept.updated_ns or 0) > (known.updated_ns or 0):
                checkpoints[uid] = kept
    return Found(checkpoints, tuple(problem for each in found for problem in each.problems))


def is_file_name(uid: str) -> bool:
    """Tell whether a UID can be a file's name, and that of no file of ours beside a model's."""
    return _UID.fullmatch(uid) is not None and not uid.endswith((_PART, _ASIDE))


def _names(path: Path) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number >= _MOST_FILES:
                return
            if not entry.is_dir(follow_symlinks=False):
                yield entry.name


class CheckpointKeeper:
    """Reads and writes checkpoints in a thread, in the order in which that was asked for.

    Args:
        folder: the agent's own; one that may not write there only reads it.
        koordlet: koordlet's folder; None: it is not read.
        writes: this agent acts on the node, and no other does.
    """

    def __init__(self, folder: Path, koordlet: Path | None, *, writes: bool) -> None:
        self._degraded = Degraded(folder, "models of prediction are not kept")
        self.found: Found | None = None  # once `restore` is done
        self.writes = writes
        self._path = folder
        self._folder = CheckpointFolder(folder)
        self._koordlet = koordlet
        self._asked = self._done = 0
        self._worker: Worker[Callable[[], None]] = Worker("checkpoints", self._do, most=_WAITING)

    @property
    def problem(self) -> str | None:
        """Why the last write failed; read by other threads."""
        return self._degraded.problem

    @property
    def is_busy(self) -> bool:
        """Something that was asked for is not done yet."""
        return self._done < self._asked

    def restore(self, wanted: Iterable[str]) -> None:
        """Read what is kept of these UIDs into `found`."""
        self._ask(functools.partial(self._restore, frozenset(wanted)))

    def write(self, saved: Mapping[str, bytes], removed: Iterable[str] = ()) -> None:
        """Save and remove files, if this agent may."""
        if self.writes:
            self._ask(functools.partial(self._write, saved, tuple(removed)))

    def close(self, timeout_s: float) -> bool:
        """Let the thread finish, for at most that long; return whether it did."""
        return self._worker.close(timeout_s)

    def _ask(self, task: Callable[[], None]) -> None:
        self._asked += 1
        if not self._worker.submit(task):  # what is not saved now is in the next save
            self._asked -= 1
            self._degraded.report(f"{_WAITING} saves wait already")

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        finally:
            self._done += 1

    def _restore(self, wanted: frozenset[str]) -> None:
        found = Found({})
        try:
            own = self._folder.load(wanted) if self.writes else read_checkpoints(self._path, wanted)
            theirs = Found({}) if self._koordlet is None else read_checkpoints(self._koordlet, wanted)
            found = newest(own, theirs)
        finally:
            self.found = found  # prediction waits for it

    def _write(self, saved: Mapping[str, bytes], removed: tuple[str, ...]) -> None:
        problem = None
        for uid in removed:
            self._folder.remove(uid)
        for uid, content in saved.items():
            try:
                self._folder.save(uid, content)
            except OSError as error:
                problem = os_reason(error)
                break  # a disk that is full or gone takes no other file either
        if saved:
            self._folder.sync()
        self._degraded.report(problem)
