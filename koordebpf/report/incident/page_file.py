"""Pages as files: the whole one or the one before, never a part."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from koordebpf.errors import ConfigError


def write_page(path: Path, text: str) -> None:
    """Write a page, in place of one that is there.

    Raises:  ConfigError: it cannot be written; what was there is there still.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        made = Path(name)
        try:
            os.close(handle)
            made.write_text(text, encoding="utf-8")  # mode 0600: names of pods are in it
            made.replace(path)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(str(path), error.strerror, "must be a file that can be written") from error
