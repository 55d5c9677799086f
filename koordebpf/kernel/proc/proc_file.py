"""A file of procfs that is opened once."""

from __future__ import annotations

import os
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.io.text_file import KeptFile


class ProcFile(KeptFile):
    """A file of procfs; `feature` is what is missing without it."""

    def __init__(self, path: Path, feature: str) -> None:
        """Open the file.

        Raises:  SupportError: there is none.
        """
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SupportError(feature, f"{path}: {error.strerror}", "Mount procfs at /proc") from None
