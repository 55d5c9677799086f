"""Files a person names on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from koordebpf.errors import ConfigError


def read_input(path: str) -> bytes:
    """Return what the file holds; - is standard input.

    Raises: ConfigError: it cannot be read.
    """
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(path, error.strerror, "must be a readable file") from error
