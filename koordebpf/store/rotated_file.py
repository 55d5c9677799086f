"""A file of lines that is rotated by its size; what is no regular file gets the lines and is not rotated."""

from __future__ import annotations

import errno
import logging
import os
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.store.line_sink import write_whole
from koordebpf.store.output_file import check_replaceable, open_growing

log = logging.getLogger("koordebpf")
_OPEN_S = 1.0  # Why: a disk that answers does so within milliseconds
_MODE = 0o640
_OF_THE_DISK = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)  # and not of the path that was given
_OPENER = Supervisor("file-opener")


class RotatedFile:
    """At most `max_bytes` × (`kept` + 1) are on disk, and no line is written in part."""

    def __init__(self, path: Path, *, max_bytes: int, kept: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._is_whole = False  # the file ends with a whole line

    def append(self, line: bytes) -> None:
        """Write one line.

        The file is opened for each: lines are rare, and a file that was moved or removed is recreated. Where the power
        failed a line may have no end: the first one that is written here begins behind it.

        Raises:  OSError: nothing of it was written.
        """
        fd, regular = open_growing(self._path, _MODE)
        try:
            if regular is None:
                write_whole(fd, line)
                return
            if not self._is_whole and _is_torn(regular):
                line = b"\n" + line
            size = os.fstat(fd).st_size
            if size and size + len(line) > self._max_bytes:
                os.close(fd)
                fd = -1
                self._rotate(regular)
                fd, _ = open_growing(regular, _MODE)
                size = 0
            if os.write(fd, line) != len(line):
                os.ftruncate(fd, size)  # a full disk took a part: half a line would spoil the file for its readers
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._is_whole = True
        finally:
            if fd >= 0:
                os.close(fd)

    def _rotate(self, path: Path) -> None:
        names = [path, *_older(path, self._kept)]
        check_replaceable(names[1:])
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)
        if self._kept == 0:
            path.unlink()


def _older(path: Path, kept: int) -> list[Path]:
    return [path.with_name(f"{path.name}.{number}") for number in range(1, kept + 1)]


def _is_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            return file.read(1) not in (b"", b"\n")
    except OSError:
        return False


def check_file(option: str, path: Path, kept: int = 0) -> None:
    """Try a file out that keeps so many before it, by a thread: open(2) on a hung disk does not return.

    A disk that takes nothing now may do so later: lines wait in memory then, as for one that fails while the agent
    runs.

    Raises:  ConfigError: it cannot be written, or not be rotated; names the option.
    """
    answers: SimpleQueue[OSError | None] = SimpleQueue()
    _OPENER.thread(lambda: answers.put(_try_out(path, kept))).start()
    try:
        error = answers.get(timeout=_OPEN_S)
    except Empty:
        log.warning("%s %s does not answer: its lines wait in memory", option, path)
        return
    if error is not None and error.errno in _OF_THE_DISK:
        log.warning("%s %s: %s: its lines wait in memory", option, path, error.strerror)
    elif error is not None:
        raise ConfigError(option, str(path), f"must be a file that can be written: {error.strerror}")


def _try_out(path: Path, kept: int) -> OSError | None:
    try:
        fd, regular = open_growing(path, _MODE)
        os.close(fd)
        if regular is not None:
            check_replaceable(_older(regular, kept))
    except OSError as error:
        return error
    return None
