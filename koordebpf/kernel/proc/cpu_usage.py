"""CPU time that was used, by the whole machine, one cgroup or this process, and what a cgroup may use."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import psutil

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.table import MOST, Keyed, Rising, amount_or_none, field, is_number, keyed, number, odd_row
from koordebpf.kernel.io.text_file import KeptFiles, ProcFile
from koordebpf.units import NS_PER_S

STAT = Path("/proc/stat")
_TICK_NS = NS_PER_S // os.sysconf("SC_CLK_TCK")
_LINE_BYTES = 1 << 8  # ten numbers of up to 20 digits; the CPUs one by one come after and are not read
_CPUS_BYTES = 1 << 20  # 8,192 lines as long as on a machine that is up for a year
_FILE_BYTES = 1 << 15  # the longest list of CPUs, every other one of 8,192, has 20 KB
_FIELDS = 8  # user nice system idle iowait irq softirq steal; guest and guest_nice are in user and nice already

_USAGE = (b"usage_usec",)  # of cpu.stat
_PERIODS = (b"nr_periods", b"nr_throttled")
_U64 = (1 << 64) - 1  # CPU time of many CPUs passes what the table reader takes for the most within weeks


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


class NodeCpuTime(ProcFile):
    """Reads the first line of /proc/stat: what all CPUs together did since boot."""

    def __init__(self, path: Path = STAT) -> None:
        """Open the file.

        Raises:  SupportError: there is none.
        """
        super().__init__(path, "CPU usage")

    def used_ns(self) -> int:
        """Return user + nice + system + irq + softirq; idle, iowait and steal are not usage.

        In ticks of 10 ms a CPU (USER_HZ is 100, whatever CONFIG_HZ): too coarse for windows far below a second.

        Source:  proc_stat(5); koordinator pkg/koordlet/util/stat.go.
        Raises:  KernelFileError: the line has fewer than eight numbers.
        Cost:    6 µs on two CPUs, and more with each: the kernel writes the whole file for any part of it.
        """
        line, _, _ = os.pread(self._fd, _LINE_BYTES, 0).partition(b"\n")
        return self._used_ns(line, b"cpu")

    def used_ns_by_cpu(self) -> tuple[int, dict[int, int]]:
        """Return `used_ns` of all CPUs, and of each that is online by its number.

        Raises:  KernelFileError: a line has fewer than eight numbers.
        Cost:    2 µs a CPU more.
        """
        whole, _, rest = os.pread(self._fd, _CPUS_BYTES, 0).partition(b"\n")
        each: dict[int, int] = {}
        odd: dict[int, KernelFileError] = {}
        for line in rest.split(b"\n"):
            name = line.partition(b" ")[0]
            if not name.startswith(b"cpu") or not is_number(name[3:]) or (number := int(name[3:])) in each:
                continue
            try:
                each[number] = self._used_ns(line, name)
            except KernelFileError as error:
                odd[number] = error
        for number in odd.keys() - each.keys():
            raise odd[number]
        return self._used_ns(whole, b"cpu"), each

    def _used_ns(self, line: bytes, name: bytes) -> int:
        fields = line.split()
        if fields[:1] != [name] or len(fields) <= _FIELDS or not all(map(is_number, fields[1:])):
            raise odd_row(self.path, line, f"must be cpu and {_FIELDS} or more numbers")
        user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[1:8])
        return (user + nice + system + irq + softirq) * _TICK_NS


class CpuBandwidth(msgspec.Struct, frozen=True, gc=False):
    """The CFS bandwidth of a cgroup. `quota_us` None: no limit."""

    quota_us: int | None
    period_us: int


class CgroupCpu(KeptFiles):
    """Reads one cgroup's CPU files, each through an fd that is opened at its first use.

    Source:  v1 cpuacct.usage, cpu.cfs_quota_us, cpu.cfs_period_us, cpuset.cpus; v2 cpu.stat, cpu.max,
             cpuset.cpus.effective; cpu.idle.
    Raises:  every method: CgroupGone: it was removed. SupportError: it has no such file, or no such controller is
             mounted. KernelFileError: garbage.
    Cost:    2 µs a file, cpu.stat 4 µs.
    """

    def __init__(self, mounts: dict[str, ControllerMount], path: str) -> None:
        """Remember where to look; nothing is opened yet.

        Args:
            mounts: by controller, as `find_controllers` returns them.
            path: relative to the mounts, the same in every hierarchy.
        """
        self.path = path
        self._mounts = mounts
        self._fds: dict[str, int] = {}
        self._rising: dict[str, Rising] = {}  # by file
        self._cpus: tuple[str, tuple[int, ...]] | None = None  # the text that was read last, and what it says

    def used_ns(self) -> int:
        """Return the CPU time that it and its children used since it was made."""
        # v2 has cpu.stat in every cgroup, with the controller enabled or not.
        if (mount := self._mounts.get("cpuacct")) is not None and mount.version == 1:
            used_ns = self._number("cpuacct", "cpuacct.usage", _U64)
            self._check("cpuacct", "cpuacct.usage", {b"": used_ns})
            return used_ns
        return self._stat(_USAGE).required(_USAGE[0]) * 1000

    def throttling(self) -> tuple[int, int] | None:
        """Return its periods of CFS bandwidth, and those of them in which it was throttled; None: it counts none."""
        periods, throttled = map(self._stat(_PERIODS).optional, _PERIODS)
        return None if periods is None or throttled is None else (periods, throttled)

    def cpus(self) -> tuple[int, ...]:
        """Return the CPUs that it may use, ascending: cpuset.cpus, on v2 what is effective."""
        name = "cpuset.cpus" if self._version("cpuset") == 1 else "cpuset.cpus.effective"
        text = self._read("cpuset", name)
        if self._cpus is None or text != self._cpus[0]:
            self._cpus = text, tuple(sorted(parse_cpu_list(text, str(self._file("cpuset", name)))))
        return self._cpus[1]

    def bandwidth(self) -> CpuBandwidth:
        """Return its quota and period."""
        if self._version("cpu") == 1:
            name, unlimited, rule = "cpu.cfs_quota_us", b"-1", "must be a quota or -1, with a period above 0"
            words = [*self._bytes("cpu", name).split(), *self._bytes("cpu", "cpu.cfs_period_us").split()]
        else:
            name, unlimited, rule = "cpu.max", b"max", "must be a quota or max, and a period above 0"
            words = self._bytes("cpu", name).split()
        match words:
            case [quota, period]:
                quota_us, period_us = amount_or_none(quota), amount_or_none(period)
                if period_us and (quota_us is not None or quota == unlimited):
                    return CpuBandwidth(quota_us, period_us)
        raise odd_row(self._path("cpu", name), b" ".join(words), rule)

    def burst_us(self) -> int:
        """Return how much of unused quota it may save up, since Linux 5.14: cpu.cfs_burst_us, v2 cpu.max.burst."""
        return self._number("cpu", "cpu.cfs_burst_us" if self._version("cpu") == 1 else "cpu.max.burst")

    def idle(self) -> int:
        """Return cpu.idle, since Linux 5.15: 1 where its tasks run only on idle CPUs (SCHED_IDLE)."""
        return self._number("cpu", "cpu.idle")

    def _stat(self, wanted: Collection[bytes]) -> Keyed:
        found = keyed(self._path("cpu", "cpu.stat"), self._bytes("cpu", "cpu.stat"), wanted)
        self._check("cpu", "cpu.stat", found.values)
        return found

    def _check(self, controller: str, name: str, counters: Mapping[bytes, int]) -> None:
        if name not in self._rising:
            self._rising[name] = Rising(self._path(controller, name))
        self._rising[name].check(counters)

    def _version(self, controller: str) -> int:
        return self._mount(controller).version

    def _mount(self, controller: str) -> ControllerMount:
        try:
            return self._mounts[controller]
        except KeyError:
            raise SupportError(
                f"{controller} controller", "no cgroup mount has it", "In a container, mount the host's /sys/fs/cgroup"
            ) from None

    def _file(self, controller: str, name: str) -> Path:
        return Path(self._path(controller, name))

    # Text: a Path takes longer than the call.
    def _path(self, controller: str, name: str) -> str:
        return f"{self._mount(controller).mount_point}/{self.path}/{name}"

    def _number(self, controller: str, name: str, most: int = MOST) -> int:
        return number(self._path(controller, name), self._bytes(controller, name), most=most)

    def _read(self, controller: str, name: str) -> str:
        return field(self._bytes(controller, name))

    def _bytes(self, controller: str, name: str) -> bytes:
        try:
            fd = self._fds.get(name)
            if fd is None:
                fd = self._fds[name] = os.open(self._path(controller, name), os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(fd, _FILE_BYTES, 0)
        except OSError as error:
            file = self._file(controller, name)
            if error.errno == errno.ENOENT and file.parent.is_dir():
                remedy = f"Enable the {controller} controller in its parent's cgroup.subtree_control"
                raise SupportError(str(file), "the cgroup has no such file", remedy) from None
            if error.errno in (errno.ENOENT, errno.ENODEV):
                raise CgroupGone(str(file.parent)) from None
            raise
