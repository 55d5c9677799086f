"""Sees who is throttled beside the rounds: the kernel says it, or cpu.stat is read many times a second."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping

from koordebpf.collect.cpu_burst.throttle_looks import ThrottleLooks
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.bpf.throttle_events import ThrottleEvents
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.stoppable_thread import StoppableThread
from koordebpf.units import NS_PER_MS, NS_PER_S

log = logging.getLogger(__name__)

LOOK_NS = 50 * NS_PER_MS  # Why: half a period of kubelet's quotas, in which a container can be throttled once
_REST_NS = 100 * NS_PER_MS  # after a throttling was seen. Why: a quota is raised once in a period
_IDLE_NS = NS_PER_S // 4  # where there is none to look at


class ThrottleWatch(Closing):
    """A thread that waits until the kernel throttles one of some containers, and says so.

    Where the kernel cannot say it, `ThrottleLooks` reads it.

    Args:
        mounts: by controller.
        wake: called from the thread.
        events: opens what the kernel says, in the thread, for it takes a while.
    """

    def __init__(
        self,
        mounts: Mapping[str, ControllerMount],
        wake: Callable[[], None],
        events: Callable[[], ThrottleEvents] = ThrottleEvents,
    ) -> None:
        self._looks = ThrottleLooks(mounts)
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
    def looks(self) -> int:
        """How many times a container was read: none where the kernel says who is throttled."""
        return self._looks.looks

    @property
    def watched(self) -> Mapping[str, int]:
        """Containers that are watched: paths below the mount → quota in µs. Any thread may set it."""
        return self._looks.watched

    @watched.setter
    def watched(self, watched: Mapping[str, int]) -> None:
        with self._lock:
            is_new = watched.keys() != self._looks.watched.keys()
            self._looks.watched = watched
            if is_new and self._events is not None:
                self._ask(self._events)

    def take(self) -> bool:
        """Tell whether a container was throttled since the last time."""
        is_seen, self._is_seen = self._is_seen, False
        return is_seen

    def close(self) -> None:
        """End the thread and close the files."""
        self._thread.close()
        self._looks.close()

    def _run(self) -> None:
        try:
            events = self._open_events()
        except SupportError as error:
            log.info("%s: cpu.stat is read %d times a second instead", error, NS_PER_S // LOOK_NS)
            self._poll()
            return
        with events:
            try:
                with self._lock:
                    self._events = events
                    self._ask(events)
                self._listen(events)
            finally:
                with self._lock:
                    self._events = None

    # One that is gone is throttled no more. More than there is room for are seen by the rounds, each second.
    def _ask(self, events: ThrottleEvents) -> None:
        if self._cpu is None:
            return
        ids = set[int]()
        for path in self._looks.watched:
            with contextlib.suppress(CgroupGone, OSError):
                ids.add(cgroup_id(self._cpu.mount_point / path))
        events.keep(ids)

    def _listen(self, events: ThrottleEvents) -> None:
        while True:
            self._thread.wait(None, events.fileno())
            if events.read():
                self._say()
                self._thread.wait(time.monotonic_ns() + _REST_NS)

    def _poll(self) -> None:
        while True:
            is_throttled = self._looks.look()
            if is_throttled:
                self._say()
            rest_ns = _REST_NS if is_throttled else LOOK_NS
            self._thread.wait(time.monotonic_ns() + (rest_ns if self._looks.watched else _IDLE_NS))

    def _say(self) -> None:
        self._is_seen = True
        self._wake()
