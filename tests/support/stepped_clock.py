"""Clocks that a test sets for the processes that it starts: tests/workloads/preload/stepped_clock.c."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tests.support.loads.workloads import BUILD


class SteppedClock:
    """The clocks of processes that are started with `environ`, so many seconds ahead of the real ones.

    Args:
        path: a file for the offsets, which it makes.
        library: where stepped_clock.so is.
    """

    def __init__(self, path: Path, library: Path = BUILD) -> None:
        self._path = path
        self.realtime_s = self.boottime_s = 0
        path.write_bytes(struct.pack("qq", 0, 0))
        # By its name alone: ld.so(8) takes a space in LD_PRELOAD for the end of a path.
        folders = ":".join(filter(None, (str(library), os.environ.get("LD_LIBRARY_PATH"))))
        self.environ = {"LD_PRELOAD": "stepped_clock.so", "LD_LIBRARY_PATH": folders, "STEPPED_CLOCK": str(path)}

    def step(self, *, realtime_s: int | None = None, boottime_s: int | None = None) -> None:
        """Set one of them, as by a person, or by a suspend, in which CLOCK_MONOTONIC stands still."""
        self.realtime_s = self.realtime_s if realtime_s is None else realtime_s
        self.boottime_s = self.boottime_s if boottime_s is None else boottime_s
        with self._path.open("r+b") as file:
            file.write(struct.pack("qq", self.realtime_s, self.boottime_s))
