"""Performance counters of a cgroup with all of its children: perf events that count while one of its tasks runs.

Source:  perf_event_open(2), PERF_FLAG_PID_CGROUP; include/uapi/linux/perf_event.h; kernel/events/core.c.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import find_perf_event_mount

_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PID_CGROUP, _CLOEXEC = 4, 8
_ENABLE = 0x2400  # PERF_EVENT_IOC_ENABLE
_DISABLE = 0x2401
_WHOLE_GROUP = 1  # PERF_IOC_FLAG_GROUP
_READ_FORMAT = 1 | 2 | 8  # time enabled, time running, the whole group at once
_ATTR_BYTES = 112  # PERF_ATTR_SIZE_VER5
_DISABLED = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

__all__ = ["CYCLES", "INSTRUCTIONS", "CgroupCounters", "Event", "find_perf_event_mount"]


class Event(msgspec.Struct, frozen=True):
    """`type` and `config` of struct perf_event_attr."""

    name: str
    type: int
    config: int


CYCLES = Event("cycles", 0, 0)  # PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES
INSTRUCTIONS = Event("instructions", 0, 1)


class CgroupCounters:
    """Some events of one cgroup, counted together on each CPU from `enable` to `disable`. Holds an fd an event and CPU.

    Needs:   CAP_PERFMON, before Linux 5.8 CAP_SYS_ADMIN. The hierarchy of perf_event: v1's own, else v2.
    """

    def __init__(self, directory: Path, events: Sequence[Event], cpus: Collection[int]) -> None:
        """Open them; nothing is counted yet. A CPU that is offline counts nothing.

        Raises:  CgroupGone. SupportError: there are no such counters here, or not for this process. KernelFileError:
                 there are no more fds.
        Cost:    10 µs an event and CPU.
        """
        self._events = tuple(events)
        self._leaders: list[int] = []
        self._members: list[int] = []
        try:
            self._open(directory, sorted(cpus))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._leaders) + len(self._members)

    def enable(self) -> None:
        """Begin to count."""
        for fd in self._leaders:
            fcntl.ioctl(fd, _ENABLE, _WHOLE_GROUP)

    def disable(self) -> None:
        """Stop counting."""
        for fd in self._leaders:
            fcntl.ioctl(fd, _DISABLE, _WHOLE_GROUP)

    def read(self) -> tuple[int, ...] | None:
        """Return what was counted of each event, over all CPUs, as if no other event had taken turns with it.

        None: on some CPU tasks ran and were not counted, so that the sum is not known.
        """
        sums = [0] * len(self._events)
        for fd in self._leaders:
            count, enabled, running, *values = struct.unpack_from(f"<3Q{len(self._events)}Q", os.read(fd, 256))
            if count != len(self._events) or (enabled and not running):
                return None
            for at, value in enumerate(values):
                sums[at] += value * enabled // running if running else 0
        return tuple(sums)

    def close(self) -> None:
        """Close every fd."""
        for fd in (*self._members, *self._leaders):
            os.close(fd)
        self._leaders, self._members = [], []

    def _open(self, directory: Path, cpus: Sequence[int]) -> None:
        try:
            cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise CgroupGone(str(directory)) from None
        try:
            for cpu in cpus:
                leader = -1
                for event in self._events:
                    fd = _perf_event_open(event, cgroup, cpu, leader, directory)
                    if fd is None:
                        break
                    (self._members if leader >= 0 else self._leaders).append(fd)
                    leader = leader if leader >= 0 else fd
        finally:
            os.close(cgroup)


def event_attr(event: Event, flags: int) -> bytes:
    """Return struct perf_event_attr of an event that is counted and not sampled.

    Source: include/uapi/linux/perf_event.h: type, size, config, sample_period, sample_type, read_format, flags.
    """
    fields = struct.pack("<IIQQQQQ", event.type, _ATTR_BYTES, event.config, 0, 0, _READ_FORMAT, flags)
    return fields.ljust(_ATTR_BYTES, b"\0")


# None: the CPU is offline.
def _perf_event_open(event: Event, cgroup: int, cpu: int, leader: int, directory: Path) -> int | None:
    number = _SYS_PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        raise SupportError("performance counters", f"not known on {platform.machine()}", "Use x86_64 or aarch64")
    flags = _DISABLED if leader < 0 else 0
    attr = event_attr(event, flags)
    fd = int(_LIBC.syscall(number, attr, cgroup, cpu, leader, _PID_CGROUP | _CLOEXEC))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    what = f"performance counter {event.name}"
    if code in (errno.ENODEV, errno.ENXIO) and leader < 0:
        return None
    if code in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        raise SupportError(what, "this processor has none, or the hypervisor hides it", "Give the machine a PMU")
    if code in (errno.EACCES, errno.EPERM):
        raise SupportError(what, os.strerror(code), "Give the agent CAP_PERFMON, before Linux 5.8 CAP_SYS_ADMIN")
    if code in (errno.EBADF, errno.EINVAL):
        raise SupportError(what, f"{directory} has no perf events", "Enable CONFIG_CGROUP_PERF")
    raise KernelFileError(str(directory), event.name, f"must be countable on CPU {cpu}: {os.strerror(code)}")
