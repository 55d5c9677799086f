"""What files of the kernel are to hold, and the writes that get them there."""

from __future__ import annotations

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl, Value, broken_rule, broken_sysctl_rule

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
