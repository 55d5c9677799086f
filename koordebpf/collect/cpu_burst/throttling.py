"""Throttled containers between rounds: reported by the kernel, or by polling cpu.stat many times a second."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping

from koordebpf.collect.cpu_burst.throttle_poller import ThrottlePoller
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.bpf.throttle_events import ThrottleEvents
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.stoppable_thread import StoppableThread
from koordebpf.units import NS_PER_MS, NS_PER_S

log = logging.getLogger(__name__)

POLL_NS = 50 * NS_PER_MS  # Why: half a period of kubelet's quotas, in which a container can be throttled once
_REST_NS = 100 * NS_PER_MS  # after a throttling was seen. Why: a quota is raised once in a period
_IDLE_NS = NS_PER_S // 4  # where there is none to read


class ThrottleWatch(Closing):
    """A thread that waits until the kernel throttles one of some containers, and wakes the loop.

    Where the kernel cannot report it, the thread polls (`ThrottlePoller`).

    Args:
        mounts: by controller.
        wake: called from the thread.
        events: opens the kernel's reports, in the thread, since that takes a while.
    """

    def __init__(
        self,
        mounts: Mapping[str, ControllerMount],
        wake: Callable[[], None],
        events: Callable[[], ThrottleEvents] = ThrottleEvents,
    ) -> None:
        self._poller = ThrottlePoller(mounts)
        self._cpu = mounts.get("cpu")
        self._wake = wake
        self._open_events = events
        self._events: ThrottleEvents | None = None
        self._lock = threading.Lock()  # of `watched` and what the kernel was asked for
        self._is_seen = False
        self._thread = StoppableThread("cpu-burst", self._run)

    def start(self) -> None:
        """Start to wait."""
        self._thread.start()

    @property
    def reads(self) -> int:
        """How many times a container was read: none where the kernel reports who is throttled."""
        return self._poller.reads

    @property
    def watched(self) -> Mapping[str, int]:
        """Containers that are watched: paths below the mount → quota in µs. Any thread may set it."""
        return self._poller.watched

    @watched.setter
    def watched(self, watched: Mapping[str, int]) -> None:
        with self._lock:
            is_new = watched.keys() != self._poller.watched.keys()
            self._poller.watched = watched
            if is_new and self._events is not None:
                self._watch(self._events)

    def take(self) -> bool:
        """Tell whether a container was throttled since the last time."""
        is_seen, self._is_seen = self._is_seen, False
        return is_seen

    def close(self) -> None:
        """End the thread and close the files."""
        self._thread.close()
        self._poller.close()

    def _run(self) -> None:
        try:
            events = self._open_events()
        except SupportError as error:
            log.info("%s: cpu.stat is read %d times a second instead", error, NS_PER_S // POLL_NS)
            self._poll()
            return
        with events:
            try:
                with self._lock:
                    self._events = events
                    self._watch(events)
                self._listen(events)
            finally:
                with self._lock:
                    self._events = None

    # One that is gone is throttled no more. More than there is room for are seen by the rounds, each second.
    def _watch(self, events: ThrottleEvents) -> None:
        if self._cpu is None:
            return
        ids = set[int]()
        for path in self._poller.watched:
            with contextlib.suppress(CgroupGone, OSError):
                ids.add(cgroup_id(self._cpu.mount_point / path))
        events.keep(ids)

    def _listen(self, events: ThrottleEvents) -> None:
        while True:
            self._thread.wait(None, events.fileno())
            if events.read():
                self._report()
                self._thread.wait(time.monotonic_ns() + _REST_NS)

    def _poll(self) -> None:
        while True:
            is_throttled = self._poller.poll()
            if is_throttled:
                self._report()
            rest_ns = _REST_NS if is_throttled else POLL_NS
            self._thread.wait(time.monotonic_ns() + (rest_ns if self._poller.watched else _IDLE_NS))

    def _report(self) -> None:
        self._is_seen = True
        self._wake()
