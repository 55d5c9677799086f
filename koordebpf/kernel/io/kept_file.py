"""A small file that one agent leaves for the next: whole or not there, and never waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.regular_file import read_regular_file, replace_file
from koordebpf.units import MIB

_MOST_BYTES = 4 * MIB  # Why: cookies of 1,500 containers are 0.3 MiB


class KeptFile:
    """Reads and replaces one file. What cannot be read or written is named as `Degraded` does, and is no error.

    Args:
        path: of the file. None: nothing is kept, as in a dry run.
        without: what the agent does without it, as the rest of a sentence.
        most_bytes: a longer file is not read.
    """

    def __init__(self, path: Path | None, without: str, most_bytes: int = _MOST_BYTES) -> None:
        self.path = path
        self._most_bytes = most_bytes
        self._degraded = Degraded(path, without)

    @property
    def is_kept(self) -> bool:
        """Whether there is such a file."""
        return self.path is not None

    def read(self) -> bytes | None:
        """Return what it holds; None: it is not there, or cannot be read."""
        if self.path is None:
            return None
        try:
            return read_regular_file(self.path, self._most_bytes)
        except FileNotFoundError:
            return None
        except (ConfigError, OSError) as error:
            self._degraded.report(error)
        return None

    def replace(self, content: bytes) -> bool:
        """Put this in place of what it held; tell whether it is there."""
        return self._done(lambda path: replace_file(path, content))

    def remove(self) -> bool:
        """Remove it; tell whether it is not there."""
        return self._done(lambda path: path.unlink(missing_ok=True))

    def _done(self, change: Callable[[Path], None]) -> bool:
        if self.path is None:
            return False
        try:
            change(self.path)
        except OSError as error:
            self._degraded.report(error)
            return False
        self._degraded.report(None)
        return True
