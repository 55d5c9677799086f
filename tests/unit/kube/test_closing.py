"""The end of a source: within a second, however many of its threads do not end."""

from __future__ import annotations

import threading
import time
from typing import Any

from koordebpf.kube.cache.reflector import close_reflectors
from tests.support.patience import patience


class Reflector:
    """One whose thread ends late."""

    def __init__(self, end: threading.Event) -> None:
        self.is_stopped = False
        self._thread = threading.Thread(target=end.wait, args=(60,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.is_stopped = True

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)


class Transport:
    """One that is closed after each reflector knows that it is to end."""

    def __init__(self, reflectors: list[Any]) -> None:
        self._reflectors = reflectors
        self.is_closed = False

    def close(self) -> None:
        assert all(each.is_stopped for each in self._reflectors)
        self.is_closed = True


def test_threads_that_do_not_end_share_one_second() -> None:
    end = threading.Event()
    reflectors: list[Any] = [Reflector(end) for _ in range(12)]
    transport: Any = Transport(reflectors)
    began_s = time.monotonic()
    close_reflectors(reflectors, transport)
    took_s = time.monotonic() - began_s
    end.set()
    assert transport.is_closed
    assert 0.5 < took_s < patience(9)
