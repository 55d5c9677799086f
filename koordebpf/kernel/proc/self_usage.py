"""What the agent itself costs."""

from __future__ import annotations

import msgspec
import psutil


class SelfUsage(msgspec.Struct, frozen=True):
    """CPU seconds (user and system) since start and memory of this process; `started_s` is the time of day."""

    cpu_s: float
    rss_bytes: int
    virtual_bytes: int
    threads: int
    open_fds: int
    started_s: float


class SelfUsageReader:
    """Reads this process's own usage."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def read(self) -> SelfUsage:
        """Return the usage now."""
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
            return SelfUsage(
                cpu_s=times.user + times.system,
                rss_bytes=memory.rss,
                virtual_bytes=memory.vms,
                threads=self._process.num_threads(),
                open_fds=self._process.num_fds(),
                started_s=self._process.create_time(),
            )
