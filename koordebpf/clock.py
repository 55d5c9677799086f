"""The clocks, as one argument that tests replace, and when something is due again."""

from __future__ import annotations

import time
from typing import Protocol

_EARLY = 10  # Why: a tenth of its period early where the agent is awake, so that all share their wake-ups


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


class Due:
    """When something is due again that has a pace of its own. CLOCK_MONOTONIC nanoseconds; at once at first."""

    __slots__ = ("_period_ns", "at_ns")

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self.at_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Tell whether it is to be done now."""
        return now_ns >= self.at_ns

    def is_nearly_due(self, now_ns: int) -> bool:
        """Tell whether it is to be done now by who is awake anyway."""
        return now_ns >= self.at_ns - self._period_ns // _EARLY

    def want(self, at_ns: int) -> None:
        """Let it be due then at the latest."""
        self.at_ns = min(self.at_ns, at_ns)

    def done(self, now_ns: int, again_ns: int | None = None) -> None:
        """Take note that it was done; it is due again after `again_ns`, None: after its period."""
        self.at_ns = now_ns + (self._period_ns if again_ns is None else again_ns)
