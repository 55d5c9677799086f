"""How a recording is known by its first bytes; imports nothing that reads one."""

from __future__ import annotations

from pathlib import Path

MAGIC = b"KRR1"  # of each record; the last one is the format's version


def is_recording_path(path: str) -> bool:
    """Tell whether this is a recording of rounds, or a folder."""
    place = Path(path)
    try:
        if place.is_dir():
            return True
        if not place.is_file():  # a pipe would be read empty
            return False
        with place.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
