"""Models of prediction in files, one for each UID, as koordlet keeps them; and koordlet's own, which are only read.

A file is complete or not there: it is written beside its place, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from koordebpf.errors import ConfigError, os_reason
from koordebpf.kernel.io.regular_file import make_folder, open_part, read_regular_file
from koordebpf.state.prediction.checkpoint import ModelCheckpoint, decode_checkpoint

_PART: Final = ".tmp"  # koordlet's name of a file that is not complete; both remove such files
_ASIDE: Final = ".corrupt"
_MOST_BYTES: Final = 64 << 10  # Why: 363 buckets are 5 KiB
_MOST_FILES: Final = 20_000  # Why: more than ten times what a node can run
_UID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # a UID of a static pod comes from a file


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

    def take(self, wanted: frozenset[str]) -> Found:
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
