"""CPU counters of cgroups: by one BPF pass where the kernel has a cgroup iterator, else by files, some in turn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from koordebpf.errors import CgroupGone, KernelProblem, SupportError
from koordebpf.events.layout import CPU_WORDS, check_cpu_layout
from koordebpf.jobs.usage_series.groups import InTurn, UsageGroup
from koordebpf.kernel.bpf.iterators import CpuHierarchy, CpuScan
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.kernel.proc.cpu_usage import CgroupCpu

# Why 128: 440 cgroups of two hierarchies are found within seven seconds, at 12 µs each.
_RESOLVED_A_PASS = 128
# Why 128: 440 cgroups are read within four seconds, at 6 µs each.
_FILES_A_PASS = 128


class CpuReading(msgspec.Struct, frozen=True):
    """Counters by cgroup id, all of about one moment. CPU time in ns; periods, and those that were throttled.

    `took_ns`: CPU time of the reading itself.
    """

    t_ns: int
    took_ns: int
    usage_ns: Mapping[int, int]
    throttling: Mapping[int, tuple[int, int]]


class CpuCounters(Protocol):
    """Reads the counters of the cgroups that it watches. `how`: in words. `is_whole`: all of them at each reading."""

    @property
    def how(self) -> str: ...  # noqa: D102 - as above

    @property
    def is_whole(self) -> bool: ...  # noqa: D102

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Watch these, by cgroup id, and no others."""

    def read(self) -> CpuReading:
        """Read what is due. What is gone is left out."""

    def close(self) -> None:
        """Close everything."""


def cpu_mounts(mounts: Mapping[str, ControllerMount], otherwise: ControllerMount) -> tuple[ControllerMount, ...]:
    """Return where usage is accounted, and where the CPU controller is, if that is another hierarchy.

    Args:
        mounts: by controller.
        otherwise: where every cgroup is; v2 accounts usage without a controller.
    """
    cpu = mounts.get("cpu")
    accounting = mounts.get("cpuacct") or cpu or otherwise
    return (accounting,) if cpu is None or cpu == accounting else (accounting, cpu)


def counters_of(
    number: int, rows: memoryview, groups: Sequence[int]
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Return CPU time, and periods with those throttled, by cgroup id, of what this pass has seen.

    Args:
        number: of the pass. A row of an older one is of a cgroup that is gone.
        rows: struct koord_cpu, one for each of `groups`.
        groups: cgroup ids; 0: the row is of none.
    """
    with rows.cast("Q") as numbers:
        usage_at, usages = numbers[0::CPU_WORDS].tolist(), numbers[1::CPU_WORDS].tolist()
        throttle_at, periods = numbers[2::CPU_WORDS].tolist(), numbers[3::CPU_WORDS].tolist()
        throttled = numbers[4::CPU_WORDS].tolist()
    usage = {group: used for group, used, at in zip(groups, usages, usage_at, strict=True) if at == number}
    throttling = {
        group: (total, some)
        for group, total, some, at in zip(groups, periods, throttled, throttle_at, strict=True)
        if at == number and total
    }
    usage.pop(0, None)
    throttling.pop(0, None)
    return usage, throttling


class ScannedCpu:
    """One pass over each hierarchy.

    Args:
        mounts: as `cpu_mounts`.
        node_path: of the node below each of them.
    Raises:  SupportError: this kernel has no such pass.
    """

    how = "one BPF pass"
    is_whole = True

    def __init__(self, mounts: Sequence[ControllerMount], node_path: str) -> None:
        self._mounts = tuple(mounts)
        roots = [CpuHierarchy(each.mount_point / node_path, each.version == 2) for each in mounts]
        self._scan = CpuScan(roots, check_cpu_layout)
        self._slots: dict[int, int] = {}  # by cgroup id of the group
        self._groups: list[int] = []  # by slot; 0: nothing
        self._paths: dict[int, str] = {}
        self._free: list[int] = []
        self._ids: dict[tuple[int, int], int] = {}  # group and hierarchy → its cgroup there
        self._unresolved: dict[tuple[int, int], None] = {}  # in the order they came

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Watch these and no others. More than the pass has rows for are not measured: the youngest."""
        for group in self._slots.keys() - groups.keys():
            self._drop(group)
        for group, its in groups.items():
            if group in self._slots and self._paths[group] == its.path:
                continue
            if group in self._slots:
                self._drop(group)
            self._add(group, its.path)

    def _add(self, group: int, path: str) -> None:
        if self._free:
            slot = self._free.pop()
            self._groups[slot] = group
        elif len(self._groups) < self._scan.most:
            slot = len(self._groups)
            self._groups.append(group)
        else:
            return
        self._slots[group], self._paths[group] = slot, path
        for number in range(len(self._mounts)):
            self._unresolved[group, number] = None

    def _drop(self, group: int) -> None:
        slot = self._slots.pop(group)
        del self._paths[group]
        self._groups[slot] = 0
        self._free.append(slot)
        for number in range(len(self._mounts)):
            self._unresolved.pop((group, number), None)
            if (own := self._ids.pop((group, number), None)) is not None:
                self._scan.unfollow(number, own)

    # Ids differ from hierarchy to hierarchy, paths do not. One that is not there yet is tried again.
    def _resolve(self) -> None:
        for group, number in list(islice(self._unresolved, _RESOLVED_A_PASS)):
            del self._unresolved[group, number]
            try:
                own = cgroup_id(self._mounts[number].mount_point / self._paths[group])
            except CgroupGone:
                self._unresolved[group, number] = None
                continue
            self._ids[group, number] = own
            self._scan.follow(number, own, self._slots[group])

    def read(self) -> CpuReading:
        """Walk. A cgroup that is not there any more, or was made again, is looked up again."""
        if self._unresolved:
            self._resolve()
        t_ns, started_ns = time.monotonic_ns(), time.thread_time_ns()
        number, rows = self._scan.run(len(self._groups))
        took_ns = time.thread_time_ns() - started_ns
        with rows:
            usage, throttling = counters_of(number, rows, self._groups)
        if len(usage) < len(self._slots):
            self._resolve_again(usage.keys())
        return CpuReading(t_ns, took_ns, usage, throttling)

    def _resolve_again(self, seen: Iterable[int]) -> None:
        for group in self._slots.keys() - seen:
            for number in range(len(self._mounts)):
                if (own := self._ids.pop((group, number), None)) is not None:
                    self._scan.unfollow(number, own)
                    self._unresolved[group, number] = None

    def close(self) -> None:
        """Detach."""
        self._scan.close()


class FileCpu:
    """Kept files, some of the cgroups in turn at each reading, so that many cost no more than few."""

    is_whole = False

    def __init__(self, mounts: Sequence[ControllerMount], why: str) -> None:
        """Remember where to look.

        Args:
            mounts: as `cpu_mounts`.
            why: there is no pass.
        """
        accounting, cpu = mounts[0], mounts[-1]
        self._mounts = {"cpuacct": accounting, "cpu": cpu}
        self.how = f"files, {_FILES_A_PASS} cgroups a second: {why}"
        self._files: dict[int, CgroupCpu] = {}
        self._turn = InTurn(_FILES_A_PASS)

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Watch these and no others."""
        for group in self._files.keys() - groups.keys():
            self._files.pop(group).close()
        for group, its in groups.items():
            if (kept := self._files.get(group)) is None or kept.path != its.path:
                if kept is not None:
                    kept.close()
                self._files[group] = CgroupCpu(self._mounts, its.path)

    def read(self) -> CpuReading:
        """Read those whose turn it is."""
        usage: dict[int, int] = {}
        throttling: dict[int, tuple[int, int]] = {}
        t_ns, started_ns = time.monotonic_ns(), time.thread_time_ns()
        for group in self._turn.next(self._files):
            files = self._files[group]
            try:
                usage[group] = files.used_ns()
                counts = files.throttling()
            except KernelProblem:
                files.close()  # opened again at its next turn
                continue
            if counts is not None and counts[0]:
                throttling[group] = counts
        return CpuReading(t_ns, time.thread_time_ns() - started_ns, usage, throttling)

    def close(self) -> None:
        """Close every fd."""
        for each in self._files.values():
            each.close()
        self._files.clear()


def open_cpu(mounts: Sequence[ControllerMount], node_path: str) -> CpuCounters:
    """Return the pass, or files where there is none, or the node has no cgroup in one of the hierarchies yet."""
    try:
        return ScannedCpu(mounts, node_path)
    except SupportError as error:
        return FileCpu(mounts, error.reason)
    except CgroupGone as error:
        return FileCpu(mounts, str(error))
