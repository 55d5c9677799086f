"""Reads a small file from a folder that others may write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from koordebpf.errors import ConfigError


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """Return what a regular file holds.

    Raises:  ConfigError: it is no regular file, or longer than `most_bytes`. OSError: it cannot be read.
    """
    # A pipe would be waited for, and a link may lead anywhere.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(str(path), "", "must be a regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ConfigError(str(path), f"{len(content)} bytes or more", f"must be {most_bytes} bytes or less")
    return content
