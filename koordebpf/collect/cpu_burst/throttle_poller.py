"""Polls cpu.stat for who is throttled, a few containers at a time: for kernels that do not report it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from koordebpf.collect.cpu.files import CgroupCpuFiles
from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.cpu_usage import CgroupCpu
from koordebpf.units import NS_PER_MS, NS_PER_US

T = TypeVar("T")

_MOST = 64  # at one poll, in turn. Why: 5 µs each; 128 are then read each 100 ms, for 0.6 % of a CPU
# A container is throttled once it has used its quota within a period, less what other CPUs hold of it: a slice each
# (sched_cfs_bandwidth_slice_us). Why half of the quota: a poll comes twice in a period.
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


class ThrottlePoller(Closing):
    """Reads nr_throttled of some containers through kept fds.

    A container is read only once its class of pods together has used what it takes to throttle it: while pods are idle
    one file is read for all of them.

    Args:
        mounts: by controller.
    """

    def __init__(self, mounts: Mapping[str, ControllerMount]) -> None:
        self.watched: Mapping[str, int] = {}  # paths below the mount → quota in µs; replaced by any thread
        self.reads = 0  # containers that were read
        self._files = CgroupCpuFiles(mounts)
        self._known: Mapping[str, int] = {}
        self._classes: tuple[_Class, ...] = ()
        self._used_ns: dict[str, int] = {}  # of the class, when a container was read or its class was last due
        self._waiting: dict[str, int | None] = {}  # containers that are to be read, and what their class has used
        self._counts: dict[str, int] = {}

    def poll(self) -> bool:
        """Read the next few that may be throttled; return whether one was since it was read before.

        Cost:    5 µs a class of pods, and 5 µs a container.
        """
        if (watched := self.watched) is not self._known:  # each round brings one; most are equal to the last
            if watched != self._known:
                self._learn(watched)
            self._known = watched
        for each in self._classes:
            self._poll_class(each)
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

    def _poll_class(self, pods: _Class) -> None:
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
        self.reads += 1
        return before is not None and found[1] > before

    # None: it is gone or garbage; a round reads it, too, and says so.
    def _read(self, path: str, what: Callable[[CgroupCpu], T]) -> T | None:
        try:
            return self._files.read(path, what)
        except (KernelFileError, OSError):
            return None

    def close(self) -> None:
        """Close the files."""
        self._files.close()
