"""What this process has started since a moment: what a whole session of tests shares was there before, and stays."""

from __future__ import annotations

import threading

import psutil


class StartedSince:
    """Threads and children of this process that were not there when this was made."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._children = {each.pid for each in psutil.Process().children()}

    def threads(self, name: str = "") -> list[threading.Thread]:
        """Return the threads whose names begin so."""
        return [each for each in threading.enumerate() if each not in self._threads and each.name.startswith(name)]

    def children(self) -> list[psutil.Process]:
        """Return the children."""
        return [each for each in psutil.Process().children() if each.pid not in self._children]
