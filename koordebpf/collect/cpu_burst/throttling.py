"""Sees who is throttled beside the rounds: the kernel says it, or cpu.stat is read many times a second."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from koordebpf.collect.cpu.files import CgroupCpuFiles
from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.bpf.throttle_events import ThrottleEvents
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.stoppable_thread import StoppableThread
from koordebpf.kernel.proc.cpu_usage import CgroupCpu
from koordebpf.units import NS_PER_MS, NS_PER_S, NS_PER_US

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_NS = 50 * NS_PER_MS  # Why: half a period of kubelet's quotas, in which a container can be throttled once
_REST_NS = 100 * NS_PER_MS  # after a throttling was seen. Why: a quota is raised once in a period
_IDLE_NS = NS_PER_S // 4  # where there is none to look at
_MOST = 64  # at one look, in turn. Why: 5 µs each; 128 are then looked at each 100 ms, for 0.6 % of a CPU
# A container is throttled once it has used its quota within a period, less what other CPUs hold of it: a slice each
# (sched_cfs_bandwidth_slice_us). Why half of the quota: a look comes twice in a period.
_SLICE_NS = 5 * NS_PER_MS
_LEAST_DUE_NS = NS_PER_MS


def throttles_ns(quota_us: int) -> int:
    """Return how much CPU time a container must have used before it is throttled; less, to be sure."""
    return max(quota_us * NS_PER_US // 2 - _SLICE_NS, _LEAST_DUE_NS)


class _Class(NamedTuple):
    # A directory of pods, and how much CPU time must have been used in it before one of its containers is throttled.
    path: str
    due_ns: dict[str, int]  # by container
    least_due_ns: int


class ThrottleWatch(Closing):
    """A thread that waits until the kernel throttles one of some containers, and says so.

    Where the kernel cannot say it, the thread reads nr_throttled through kept fds. A container is read only once its
    class of pods together has used what it takes to throttle it: while pods are idle one file is read for all of them.

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
        self.looks = 0  # containers that were read
        self._files = CgroupCpuFiles(mounts)
        self._wake = wake
        self._open_events = events
        self._events: ThrottleEvents | None = None
        self._lock = threading.Lock()  # of `watched` and what the kernel was asked for
        self._watched: Mapping[str, int] = {}
        self._known: Mapping[str, int] = {}
        self._classes: tuple[_Class, ...] = ()
        self._used_ns: dict[str, int] = {}  # of the class, when a container was read or its class was last due
        self._waiting: dict[str, int | None] = {}  # containers that are to be read, and what their class has used
        self._counts: dict[str, int] = {}
        self._is_seen = False
        self._thread = StoppableThread("cpu-burst", self._run)

    def start(self) -> None:
        """Start to look."""
        self._thread.start()

    @property
    def watched(self) -> Mapping[str, int]:
        """Containers that are looked at: paths below the mount → quota in µs. Any thread may set it."""
        return self._watched

    @watched.setter
    def watched(self, watched: Mapping[str, int]) -> None:
        with self._lock:
            is_new = watched.keys() != self._watched.keys()
            self._watched = watched
            if is_new and self._events is not None:
                self._ask(self._events)

    def take(self) -> bool:
        """Tell whether a container was throttled since the last time."""
        is_seen, self._is_seen = self._is_seen, False
        return is_seen

    def look(self) -> bool:
        """Look at the next few that may be throttled; return whether one was since it was looked at before.

        Cost:    5 µs a class of pods, and 5 µs a container.
        """
        if (watched := self._watched) is not self._known:  # each round brings one; most are equal to the last
            if watched != self._known:
                self._learn(watched)
            self._known = watched
        for each in self._classes:
            self._look_at_class(each)
        is_throttled = False
        for path in [*self._waiting][:_MOST]:
            is_throttled |= self._grew(path, self._waiting.pop(path))
        return is_throttled

    def _learn(self, watched: Mapping[str, int]) -> None:
        classes: dict[str, dict[str, int]] = {}
        for path, quota_us in watched.items():
            classes.setdefault(path.rsplit("/", 2)[0], {})[path] = throttles_ns(quota_us)
        self._classes = tuple(_Class(path, due_ns, min(due_ns.values())) for path, due_ns in classes.items())
        self._files.keep_only({*watched, *classes})
        self._counts = {path: count for path, count in self._counts.items() if path in watched}
        self._used_ns = {path: used for path, used in self._used_ns.items() if path in watched}
        self._waiting = {path: used for path, used in self._waiting.items() if path in watched}

    def _look_at_class(self, pods: _Class) -> None:
        used_ns = self._read(pods.path, CgroupCpu.used_ns)
        before = self._used_ns.get(pods.path)
        if used_ns is not None and before is not None and 0 <= used_ns - before < pods.least_due_ns:
            return
        if used_ns is not None:
            self._used_ns[pods.path] = used_ns
        for path, due_ns in pods.due_ns.items():
            last = self._used_ns.get(path)
            if used_ns is None or last is None or not 0 <= used_ns - last < due_ns:
                self._waiting.setdefault(path, used_ns)

    def _grew(self, path: str, used_ns: int | None) -> bool:
        found = self._read(path, CgroupCpu.throttling)
        if found is None:
            return False
        before = self._counts.get(path)
        self._counts[path] = found[1]
        if used_ns is not None:
            self._used_ns[path] = used_ns
        self.looks += 1
        return before is not None and found[1] > before

    # None: it is gone or garbage; a round reads it, too, and says so.
    def _read(self, path: str, what: Callable[[CgroupCpu], T]) -> T | None:
        try:
            return self._files.read(path, what)
        except (KernelFileError, OSError):
            return None

    def close(self) -> None:
        """End the thread and close the files."""
        self._thread.close()
        self._files.close()

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
        mount, ids = self._files.mounts["cpu"].mount_point, set[int]()
        for path in self._watched:
            with contextlib.suppress(CgroupGone, OSError):
                ids.add(cgroup_id(mount / path))
        events.keep(ids)

    def _listen(self, events: ThrottleEvents) -> None:
        while True:
            self._thread.wait(None, events.fileno())
            if events.read():
                self._say()
                self._thread.wait(time.monotonic_ns() + _REST_NS)

    def _poll(self) -> None:
        while True:
            is_throttled = self.look()
            if is_throttled:
                self._say()
            rest_ns = _REST_NS if is_throttled else LOOK_NS
            self._thread.wait(time.monotonic_ns() + (rest_ns if self._watched else _IDLE_NS))

    def _say(self) -> None:
        self._is_seen = True
        self._wake()
