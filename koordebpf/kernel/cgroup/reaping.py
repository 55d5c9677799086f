"""Free the memory of processes that are to die, several at a time and beside their own exit: process_mrelease."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from koordebpf.kernel.io.worker import Supervisor

SYS_PROCESS_MRELEASE = 448  # include/uapi/asm-generic/unistd.h, the same number on every architecture; since v5.15
# Why 4: each frees at its own processor's speed, 32 to 40 ms for a GiB with two; more would take the whole of a small
# node at the highest nice level.
_MOST_REAPERS = 4
# Why 20 ms: a reaper of a busy node waits for its processor. What has not started by then may not be able to.
_START_S = 0.02
_LOOK_S = 0.0003

_BESIDE, _STARTS = Supervisor("reaper-beside"), Supervisor("reaper-starts")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Reaping:
    """Releases the memory behind pidfds, the largest last. `released` counts the calls that succeeded.

    Args:
        pidfds: pid and pidfd; the caller keeps them open.
        all_started: is called once, in another thread, when each has its release in progress or behind it. Not where no
            thread can be started.
    """

    def __init__(self, pidfds: Sequence[tuple[int, int]], all_started: Callable[[], object]) -> None:
        self.released = 0
        by_size = sorted(pidfds, key=lambda each: resident_pages(each[0]))
        self._waiting = deque(by_size)
        self._reapers = max(min(os.cpu_count() or 1, _MOST_REAPERS, len(by_size)), 1)
        self._all_started = all_started
        self._lock = threading.Lock()
        self._is_supported = True
        self._is_over = threading.Event()

    def run(self) -> None:
        """Release all of them in this thread and some others, which end with it."""
        if not self._waiting:
            return
        others = self._started()
        self._work()
        for each in others:
            each.join()

    # As many as there is memory for: under pressure a thread's stack may be refused.
    def _started(self) -> list[threading.Thread]:
        others: list[threading.Thread] = []
        try:
            for _ in range(self._reapers - 1):
                other = _BESIDE.thread(self._work)
                other.start()
                others.append(other)
        except RuntimeError:
            pass
        return others

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or not self._is_supported:
                    return
                pid, pidfd = self._waiting.popleft()
                is_last = not self._waiting
            started = self._announced(pid) if is_last else None
            self._release(pidfd)
            if started is not None:
                self._is_over.set()
                started.join()

    # The last one may die by itself once its release holds the mm, and help.
    def _announced(self, pid: int) -> threading.Thread | None:
        announce = _STARTS.thread(functools.partial(self._announce, pid, resident_pages(pid)))
        try:
            announce.start()
        except RuntimeError:  # no memory, or no pid, left for a thread: the caller continues when it is released
            return None
        return announce

    def _announce(self, pid: int, before: int) -> None:
        deadline = time.monotonic() + _START_S
        while not self._is_over.wait(_LOOK_S) and time.monotonic() < deadline:
            if resident_pages(pid) < before:
                break
        self._all_started()

    def _release(self, pidfd: int) -> None:
        if _libc.syscall(SYS_PROCESS_MRELEASE, pidfd, 0) == 0:
            with self._lock:
                self.released += 1
        elif ctypes.get_errno() == errno.ENOSYS:  # before v5.15
            self._is_supported = False


def resident_pages(pid: int) -> int:
    """Return how many pages a process holds; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
