"""The object that says when a cgroup was throttled at its CPU quota: loaded where CPU burst is on.

Owns its map and its ring.
"""

from __future__ import annotations

from collections.abc import Collection

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.lockdown import opening
from koordebpf.kernel.bpf.programs import object_path
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.signals import SignalSource

_FEATURE = "CPU throttling"
_HOW = "BTF tracepoint hrtimer_expire_entry, where the feature gate CPUBurst is on"
_ID_BYTES = 8
_WATCHED = bytes(4)


class ThrottleEvents(Closing):
    """Ids of cgroups that were throttled, of those that `keep` names, in the cpu controller's hierarchy.

    `fileno` is readable when there are some: one each period of the quota in which one of its tasks was throttled.

    Source:  tracepoint hrtimer_expire_entry, by BTF (since v5.5), for sched_cfs_period_timer (kernel/sched/fair.c).
    Raises:  SupportError: no libbpf, no object, or the kernel refuses it.
    Cost:    docs/qos/cpu-burst.md; loading takes 0.1 s, for the kernel's symbols are read.
    """

    def __init__(self) -> None:
        self._ring: libbpf.RingReader | None = None
        self._object: libbpf.Object | None = None
        self._kept: set[int] = set()
        with opening(_FEATURE, self.close):
            opened = self._object = libbpf.Object(object_path("throttle"))
            opened.load()
            self._watched = opened.map("throttle_watched", len(_WATCHED))
            self._ring = libbpf.RingReader(opened.map("throttled", 0))
            for name, handle in opened.programs():
                opened.attach_trace(name, handle)

    def keep(self, cgroup_ids: Collection[int]) -> int:
        """Report these cgroups from now on, and no others; return how many found the map full."""
        wanted = {*cgroup_ids}
        for cgroup_id in self._kept - wanted:
            self._watched.delete(cgroup_id.to_bytes(_ID_BYTES, "little"))
        self._kept &= wanted
        for cgroup_id in wanted - self._kept:
            if self._watched.update(cgroup_id.to_bytes(_ID_BYTES, "little"), _WATCHED):
                self._kept.add(cgroup_id)
        return len(wanted - self._kept)

    def fileno(self) -> int:
        """Return the ring's fd, to wait for."""
        assert self._ring is not None  # not closed
        return self._ring.fileno()

    def read(self) -> set[int]:
        """Return the ids of those that were throttled since the last time; never waits."""
        return {int.from_bytes(each, "little") for each in self._ring.read()} if self._ring else set()

    def close(self) -> None:
        """Detach and free everything; twice is harmless."""
        for part in (self._ring, self._object):
            if part is not None:
                part.close()
        self._ring = None


def support_of_throttle_events() -> SignalSource:
    """Return how throttling is seen here, found by attaching the program and detaching it again."""
    try:
        with ThrottleEvents():
            pass
    except SupportError as error:
        cost = "CPUBurst reads cpu.stat 20 times a second instead"
        return SignalSource(_FEATURE, "", False, error.reason, error.remedy, cost)
    return SignalSource(_FEATURE, _HOW, works=True)
