"""A file read again and again while something else happens."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

from tests.support.patience import patience


class Followed:
    """Reads a file again and again, and keeps what it held, each value once in a row."""

    def __init__(self, path: Path) -> None:
        self.values: list[str] = []
        self._path = path
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def _follow(self) -> None:
        while not self._is_over.wait(patience(0.002)):
            value = self._path.read_text().strip()
            if self.values[-1:] != [value]:
                self.values.append(value)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
