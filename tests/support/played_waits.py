"""Waits of a thread that take no time, so that a test sees how long each would have been."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest


class PlayedWaits:
    """Stands in for the events of one module. After `most` waits they are all set, and their threads end."""

    def __init__(self, most: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.seconds: list[float] = []
        self.ended = threading.Event()
        self._most = most
        self._meanwhile = meanwhile

    def play_in(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Let what this module opens from now on wait here."""
        monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: self, Thread=threading.Thread))

    def wait(self, timeout_s: float) -> bool:
        if self.is_set():
            return True
        self._meanwhile()
        self.seconds.append(timeout_s)
        if len(self.seconds) == self._most:
            self.ended.set()
        return self.is_set()

    def is_set(self) -> bool:
        return self.ended.is_set()

    def set(self) -> None:
        self.ended.set()

    def clear(self) -> None:
        """Nothing sets one of them but the end."""


class PlayedCondition(threading.Condition):
    """Stands in for the conditions of one module: a wait for something that may happen earlier takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def play_in(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Let what this module opens from now on wait here."""
        monkeypatch.setattr(module, "threading", SimpleNamespace(Condition=lambda: self, Thread=threading.Thread))

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return predicate()
