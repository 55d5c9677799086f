"""Cgroups that are born and die at a given rate, in a process of their own."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

_ALIVE = 50
_MAX_QUEUED_EVENTS = Path("/proc/sys/fs/inotify/max_queued_events")


@contextlib.contextmanager
def short_inotify_queue(events: int) -> Iterator[None]:
    """Let inotify instances that are opened meanwhile hold so few events; those that are open keep their own number."""
    before = _MAX_QUEUED_EVENTS.read_text()
    _MAX_QUEUED_EVENTS.write_text(str(events))
    try:
        yield
    finally:
        _MAX_QUEUED_EVENTS.write_text(before)


class Churn:
    """Makes `per_s` cgroups a second below a parent and removes as many, for `seconds`; the last 50 stay.

    What could not be done in time is not made up for later: `rate()` tells what was.
    """

    def __init__(self, parent: Path, per_s: int, seconds: float) -> None:
        self._seconds = seconds
        self._read, write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._read)
                os.write(write, b"%d" % _churn(os.fspath(parent), per_s, seconds))
            finally:
                os._exit(0)
        os.close(write)

    def is_over(self) -> bool:
        """Tell whether the last cgroup is made."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def rate(self) -> float:
        """Wait for the end; return how many were made a second."""
        with os.fdopen(self._read, "rb") as pipe:
            made = int(pipe.read() or b"0")
        os.waitpid(self._pid, 0)
        return made / self._seconds


def _churn(parent: str, per_s: int, seconds: float) -> int:
    alive: deque[str] = deque()
    made = 0
    started_s = time.monotonic()
    while (elapsed := time.monotonic() - started_s) < seconds:
        if made >= elapsed * per_s:
            time.sleep(0.001)
            continue
        path = f"{parent}/churn-{made}"
        Path(path).mkdir()
        alive.append(path)
        made += 1
        if len(alive) > _ALIVE:
            Path(alive.popleft()).rmdir()
    return made
