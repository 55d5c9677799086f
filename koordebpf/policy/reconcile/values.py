"""What files of the kernel are to hold, and the writes that get them there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import MIN_QUOTA_US, CgroupFile, Sysctl, Value, broken_rule, broken_sysctl_rule

FileKey = tuple[str, CgroupFile | Sysctl]  # path below the mount; of a sysctl its part, "" where it has none


class CgroupWrite(msgspec.Struct, frozen=True, gc=False):
    """One cgroup file and what it is to hold.

    Shape:   `path` is relative to the mount of the file's hierarchy, the same on v1 and v2: kubepods/besteffort/pod….
    Units:   a set of CPU numbers for cpuset.cpus, empty: as the parent (v2); microseconds for quota and burst; bytes
             for memory; 2 to 262144 for cpu.shares, also on v2; a `Table` of bytes or requests a second for
             blkio.throttle.*. None: no limit.
    """

    path: str
    file: CgroupFile
    value: Value


class SysctlWrite(msgspec.Struct, frozen=True, gc=False):
    """One file of the whole node and what it is to hold.

    Units:   pages in KiB, ten thousandths, nanoseconds, 0 or 1: as its name says. `part` is the scheduler feature.
    """

    sysctl: Sysctl
    value: int
    part: str = ""

    @property
    def name(self) -> str:
        """The file and its part, for people."""
        return f"{self.sysctl.value}: {self.part}" if self.part else self.sysctl.value


class DesiredState(msgspec.Struct, frozen=True):
    """What one strategy wants; `reason` is a sentence for the audit. Files it does not name are left alone."""

    reason: str
    writes: tuple[CgroupWrite, ...] = ()
    sysctls: tuple[SysctlWrite, ...] = ()


class PlannedWrite(msgspec.Struct, frozen=True, gc=False):
    """One write in its place of the order; not `is_final`: a step in between, which a later write makes exact."""

    key: FileKey
    value: Value
    is_final: bool = True


class Blocked(msgspec.Struct, frozen=True, gc=False):
    """A write that is not tried because the kernel would refuse it, and why."""

    key: FileKey
    value: Value
    why: str


class WritePlan(msgspec.Struct, frozen=True):
    """Writes in order; empty where every file holds what it is to hold."""

    writes: tuple[PlannedWrite, ...] = ()
    blocked: tuple[Blocked, ...] = ()


def wanted_values(desired: DesiredState) -> dict[FileKey, Value]:
    """Return the value of each file.

    Raises:  ConfigError: a value that its file cannot hold, or two values for one file.
    """
    wanted: dict[FileKey, Value] = {}
    for sysctl in desired.sysctls:
        if (rule := broken_sysctl_rule(sysctl.sysctl, sysctl.value, sysctl.part)) is not None:
            raise ConfigError(sysctl.name, sysctl.value, rule)
        _add(wanted, (sysctl.part, sysctl.sysctl), sysctl.value)
    for write in desired.writes:
        if not is_below_mount(write.path):
            raise ConfigError(write.file.value, write.path, "must be a path below the mount")
        if (rule := broken_rule(write.file, write.value)) is not None:
            raise ConfigError(f"{write.path}/{write.file.value}", write.value, rule)
        _add(wanted, (write.path, write.file), write.value)
    return wanted


def is_below_mount(path: str) -> bool:
    """Tell whether a relative path stays below what it is relative to."""
    return not path.startswith("/") and ".." not in path.split("/")


def _add(wanted: dict[FileKey, Value], key: FileKey, value: Value) -> None:
    if wanted.setdefault(key, value) != value:
        path, file = key
        name = f"{path}/{file.value}" if path else file.value
        raise ConfigError(name, value, f"must have one value, {wanted[key]!r} is wanted too")


class HookWrite(msgspec.Struct, frozen=True, gc=False):
    """One file, the hook that wants it so, and in words the field that the value comes from."""

    write: CgroupWrite
    hook: str
    source: str


def paths_of(writes: Iterable[CgroupWrite]) -> int:
    """Return how many cgroups are written."""
    return len({each.path for each in writes})


class TaskSetting(msgspec.Struct, frozen=True, gc=False):
    """What the processes of a container are to have: oom_score_adj, or a core scheduling group ("" none)."""

    path: str
    pod: str
    container: str
    value: int | str
    hook: str
    source: str


class OwnQuota(msgspec.Struct, frozen=True, gc=False):
    """The quota that a cgroup has of its own account, and its period. Microseconds; None: no limit."""

    quota_us: int | None
    period_us: int


def fitting_quotas(wanted: Mapping[FileKey, Value], own: Mapping[str, OwnQuota]) -> dict[FileKey, Value]:
    """Return what the cgroups below the wanted quotas are to hold: their own, cut to what is wanted above them.

    One that is wanted itself is among them only where it is more than what is wanted above it. `own` has them by path,
    and those above them for the period. A pod with a limit of four CPUs below a best-effort directory of two has two
    for as long; koordlet's write of the two is refused there. Nothing is cut on v2, where the less of both counts.

    Source:  kernel/sched/core.c, tg_cfs_schedulable_down.
    """
    fitting: dict[FileKey, Value] = {}
    for path, quota in own.items():
        key = (path, CgroupFile.CPU_QUOTA)
        above = _nearest_wanted(path, wanted)
        if above is None or above not in own:
            continue
        value = wanted.get(key, quota.quota_us)
        limit = wanted[above, CgroupFile.CPU_QUOTA]
        if isinstance(limit, int) and isinstance(value, int):
            cut = limit * quota.period_us // own[above].period_us
            value = min(value, max(cut, MIN_QUOTA_US))
        if key not in wanted or value != wanted[key]:
            fitting[key] = value
    return fitting


def _nearest_wanted(path: str, wanted: Mapping[FileKey, Value]) -> str | None:
    while path:
        path = path.rpartition("/")[0]
        if (path, CgroupFile.CPU_QUOTA) in wanted:
            return path
    return None
