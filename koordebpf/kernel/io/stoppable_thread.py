"""A thread that waits for a descriptor or a deadline, and ends at once when its owner is closed."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable

from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.worker import Supervisor


class Stopped(Exception):
    """`close` was called."""


class StoppableThread(Closing):
    """Calls `run` in a thread from `start` until it returns or `close` is called.

    Args:
        name: of the thread.
        run: calls `wait` wherever it waits, and lets `Stopped` pass.
        begin: run first in that thread.
    """

    def __init__(self, name: str, run: Callable[[], object], begin: Callable[[], object] | None = None) -> None:
        self._run = run
        self._begin = begin
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Supervisor(name).thread(self._work, again=True)

    def start(self) -> None:
        """Start the thread: what `run` uses is there."""
        self._thread.start()

    def wait(self, until_ns: int | None, fd: int | None = None, events: int = select.POLLIN) -> bool:
        """Wait until `fd` is ready; return False where it was not until then (CLOCK_MONOTONIC; None: no deadline).

        Raises:  Stopped: `close` was called.
        """
        poll = select.poll()
        poll.register(self._stop_fd, select.POLLIN)
        if fd is not None:
            poll.register(fd, events)
        left_ms = None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e6
        ready = poll.poll(left_ms)
        if any(each == self._stop_fd for each, _ in ready):
            raise Stopped
        return bool(ready)

    def close(self) -> None:
        """Stop the thread, where it was started, and wait for its end; twice is harmless."""
        if self._stop_fd < 0:
            return
        os.eventfd_write(self._stop_fd, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._stop_fd)
        self._stop_fd = -1

    def _work(self) -> None:
        if self._begin is not None:
            self._begin()
        with contextlib.suppress(Stopped):
            self._run()
