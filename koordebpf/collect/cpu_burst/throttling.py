"""Looks at who is throttled, many times a second, beside the rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from koordebpf.collect.cpu.files import CgroupCpuFiles
from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.stoppable_thread import StoppableThread
from koordebpf.kernel.proc.cpu_usage import CgroupCpu
from koordebpf.units import NS_PER_MS, NS_PER_S

LOOK_NS = 50 * NS_PER_MS  # Why: half a period of kubelet's quotas, in which a container can be throttled once
_REST_NS = 100 * NS_PER_MS  # after a throttling was seen. Why: a quota is raised once in a period
_IDLE_NS = NS_PER_S // 4  # where there is none to look at
_MOST = 64  # at one look, in turn. Why: 5 µs each; 128 are then looked at each 100 ms, for 0.6 % of a CPU


class ThrottleWatch(Closing):
    """A thread that reads nr_throttled of some containers through kept fds, and says when one has grown.

    Args:
        mounts: by controller.
        wake: called from the thread.
    """

    def __init__(self, mounts: Mapping[str, ControllerMount], wake: Callable[[], None]) -> None:
        self.watched: tuple[str, ...] = ()  # paths below the mount; set by any thread
        self.looks = 0  # files that were read
        self._files = CgroupCpuFiles(mounts)
        self._wake = wake
        self._counts: dict[str, int] = {}
        self._next = 0
        self._is_seen = False
        self._thread = StoppableThread("cpu-burst", self._run)

    def start(self) -> None:
        """Start to look."""
        self._thread.start()

    def take(self) -> bool:
        """Tell whether a container was throttled since the last time."""
        is_seen, self._is_seen = self._is_seen, False
        return is_seen

    def look(self) -> bool:
        """Look at the next few; return whether one of them was throttled since it was looked at before.

        Cost:    5 µs a container.
        """
        watched = self.watched
        if len(self._counts.keys() - set(watched)):
            self._files.keep_only(watched)
            self._counts = {path: count for path, count in self._counts.items() if path in watched}
        is_throttled = False
        for at in range(min(_MOST, len(watched))):
            path = watched[(self._next + at) % len(watched)]
            try:
                found = self._files.read(path, CgroupCpu.throttling)
            except (KernelFileError, OSError):
                continue  # a round reads it, too, and says so
            if found is None:
                continue
            before = self._counts.get(path)
            self._counts[path] = found[1]
            is_throttled |= before is not None and found[1] > before
            self.looks += 1
        self._next = (self._next + _MOST) % max(len(watched), 1)
        return is_throttled

    def close(self) -> None:
        """End the thread and close the files."""
        self._thread.close()
        self._files.close()

    def _run(self) -> None:
        while True:
            is_throttled = self.look()
            if is_throttled:
                self._is_seen = True
                self._wake()
            rest_ns = _REST_NS if is_throttled else LOOK_NS
            self._thread.wait(time.monotonic_ns() + (rest_ns if self.watched else _IDLE_NS))
