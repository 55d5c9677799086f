"""The clocks, as one argument: tests hand in their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the time is."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC."""

    def wall_s(self) -> float:
        """Return seconds since the epoch."""

    def suspended_ns(self) -> int:
        """Return for how long the machine has been suspended since boot: CLOCK_BOOTTIME − CLOCK_MONOTONIC."""


class SystemClock:
    """The kernel's clocks."""

    now_ns = staticmethod(time.monotonic_ns)
    wall_s = staticmethod(time.time)

    @staticmethod
    def suspended_ns() -> int:
        """Return CLOCK_BOOTTIME − CLOCK_MONOTONIC: the first runs while the machine is suspended."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
