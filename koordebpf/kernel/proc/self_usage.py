"""What the agent itself costs."""

from __future__ import annotations

import msgspec
import psutil


class SelfUsage(msgspec.Struct, frozen=True):
    """CPU seconds (user and system) since start and resident bytes of this process."""

    cpu_s: float
    rss_bytes: int
    threads: int
    open_fds: int


class SelfUsageReader:
    """Reads this process's own usage."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def read(self) -> SelfUsage:
        """Return the usage now."""
        with self._process.oneshot():
            times = self._process.cpu_times()
            return SelfUsage(
                cpu_s=times.user + times.system,
                rss_bytes=self._process.memory_info().rss,
                threads=self._process.num_threads(),
                open_fds=self._process.num_fds(),
            )
