"""The clocks of this process, replaced: they stand until they are put forward, and a sleep puts them forward."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from unittest import mock

from koordebpf.clock import SystemClock
from koordebpf.units import NS_PER_S

_START_NS = 1_000 * NS_PER_S
_EPOCH_S = 1_700_000_000


class VirtualTime:
    """What `time` and `SystemClock` say while it is in force."""

    def __init__(self) -> None:
        self.ns = _START_NS
        self.asleep_ns = 0  # for how long the machine was suspended

    def now_ns(self) -> int:
        return self.ns

    def wall_s(self) -> float:
        return _EPOCH_S + (self.ns + self.asleep_ns) / NS_PER_S

    def suspended_ns(self) -> int:
        return self.asleep_ns

    def sleep(self, seconds: float) -> None:
        self.ns += int(seconds * NS_PER_S)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, fake in (
                ("monotonic_ns", self.now_ns),
                ("monotonic", lambda: self.ns / NS_PER_S),
                ("time", self.wall_s),
                ("sleep", self.sleep),
            ):
                stack.enter_context(mock.patch.object(time, name, fake))
            for name, clock in (("now_ns", self.now_ns), ("wall_s", self.wall_s), ("suspended_ns", self.suspended_ns)):
                stack.enter_context(mock.patch.object(SystemClock, name, staticmethod(clock)))
            yield
