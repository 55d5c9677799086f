"""Clocks that a test sets for the processes that it starts: tests/workloads/preload/stepped_clock.c."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.loads import BUILD


class SteppedClock:
    """The clocks of processes that are started with `environ`, so many seconds ahead of the real ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.realtime_s = self.boottime_s = 0
        path.write_bytes(struct.pack("qq", 0, 0))
        self.environ = {"LD_PRELOAD": str(BUILD / "stepped_clock.so"), "STEPPED_CLOCK": str(path)}

    def step(self, *, realtime_s: int | None = None, boottime_s: int | None = None) -> None:
        """Set one of them, as by a person, or by a suspend, in which CLOCK_MONOTONIC stands still."""
        self.realtime_s = self.realtime_s if realtime_s is None else realtime_s
        self.boottime_s = self.boottime_s if boottime_s is None else boottime_s
        with self._path.open("r+b") as file:
            file.write(struct.pack("qq", self.realtime_s, self.boottime_s))
