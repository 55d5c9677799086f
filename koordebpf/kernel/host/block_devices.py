"""The node's disks with partitions, LVM volumes and mounts, from sysfs and mountinfo.

Source:  Documentation/ABI/testing/sysfs-block, sysfs-block-dm; koordinator pkg/koordlet/util/storageinfo.go.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordebpf.errors import SupportError
from koordebpf.kernel.io.table import text_or_none
from koordebpf.kernel.proc.mounts import MOUNTINFO, read_mounts

_LVM = "LVM-"  # how the UUID of a device mapper's device begins that LVM made
_MULTIPATH = "mpath-"  # the same of multipathd: requests, not bios, pass to the paths below
_MOST = 4096  # devices and mounts that are kept. Why: more than a machine has; who mounts a lot costs no more than this


class WholeDisks(msgspec.Struct, frozen=True):
    """What devices lie on in the end: whole disks, by major:minor, ascending. The kernel limits these alone.

    A loop device is a disk, since it has a queue of its own, and so is one of several paths; partitions, LVM, dm-crypt
    and md lie on disks.

    `devices`: by path, as /dev/sda1, /dev/mapper/VG-LV and /dev/VG/LV. `groups`: by the name of a volume group that has
    a volume. `mounts`: by mount point.
    """

    devices: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]
    mounts: dict[str, tuple[str, ...]]


class _Device(msgspec.Struct, frozen=True):
    path: str
    number: str
    disk: str | None  # of a partition
    mapped: str | None  # LVM's name of it: group and volume
    below: tuple[str, ...]  # kernel names of what it consists of
    is_multipath: bool = False


def whole_disks(sysfs: Path = Path("/sys"), mountinfo: Sequence[Path] = (MOUNTINFO,), below: str = "/") -> WholeDisks:
    """Return what each device, volume group and mount lies on now; of mounts those below a directory.

    Of a mount point that several tables have the last one counts.

    Source:  block/blk-cgroup.c, blkg_conf_open_bdev: a partition is refused (ENODEV).
    Raises:  SupportError: no sysfs or procfs.
    Cost:    60 µs a device, 2 µs a mount.
    """
    devices = _devices(sysfs / "class/block")
    found: dict[str, tuple[str, ...]] = {}
    groups: dict[str, set[str]] = {}
    for name, each in list(devices.items())[:_MOST]:
        disks = found[each.path] = tuple(sorted(_disks_below(name, devices, frozenset())))
        if each.mapped is not None:
            group, volume = split_mapped(each.mapped)
            groups.setdefault(group, set()).update(disks)
            found[f"/dev/{group}/{volume}"] = disks
    place = below.rstrip("/") + "/"
    numbers = {each.number: each.path for each in devices.values()}
    mounts = {
        at: found[device]
        for table in mountinfo
        for at, device in _mounts(table, numbers).items()
        if at.startswith(place) and device in found
    }
    return WholeDisks(
        found, {group: tuple(sorted(disks)) for group, disks in groups.items()}, dict(list(mounts.items())[:_MOST])
    )


# `seen` are those above: sysfs has no circle, a tree that changes meanwhile may.
def _disks_below(name: str, devices: dict[str, _Device], seen: frozenset[str]) -> set[str]:
    device = devices.get(name)
    if device is None or name in seen:
        return set()
    below = (device.disk,) if device.disk is not None else device.below
    if device.is_multipath or not below:
        return {device.number}
    return {number for each in below for number in _disks_below(each, devices, seen | {name})}


def split_mapped(name: str) -> tuple[str, str]:
    """Return group and volume of a device mapper's name; a dash within either of them is doubled.

    >>> split_mapped("vg--data-home")
    ('vg-data', 'home')
    """
    parts = re.split(r"(?<!-)-(?=(?:--)*[^-])", name, maxsplit=1)
    group, volume = parts if len(parts) == 2 else (parts[0], "")
    return group.replace("--", "-"), volume.replace("--", "-")


def _devices(folder: Path) -> dict[str, _Device]:
    try:
        names = sorted(each.name for each in folder.iterdir())
    except OSError as error:
        raise SupportError("block devices", f"{folder}: {error.strerror}", "Mount sysfs at /sys") from None
    return {name: device for name in names if (device := _device(folder / name)) is not None}


def _device(path: Path) -> _Device | None:
    number = _text(path / "dev")
    if number is None:
        return None
    mapped, uuid = _text(path / "dm/name"), _text(path / "dm/uuid") or ""
    # A partition's directory lies in its disk's.
    disk = Path(os.path.realpath(path)).parent.name if (path / "partition").exists() else None
    try:
        below = tuple(sorted(each.name for each in (path / "slaves").iterdir()))
    except OSError:
        below = ()
    name = f"mapper/{mapped}" if mapped else path.name.replace("!", "/")
    is_multipath = uuid.startswith(_MULTIPATH)
    return _Device(f"/dev/{name}", number, disk, mapped if uuid.startswith(_LVM) else None, below, is_multipath)


# Of btrfs and its kind the number is none of a device's: the source says which.
def _mounts(mountinfo: Path, numbers: dict[str, str]) -> dict[str, str]:
    try:
        table = read_mounts(mountinfo)
    except OSError as error:
        raise SupportError("mounts", f"{mountinfo}: {error.strerror}", "Mount procfs at /proc") from None
    found: dict[str, str] = {}
    for each in table:
        device = numbers.get(each.device) or (each.source if each.source.startswith("/dev/") else None)
        if device is not None:
            found[each.mount_point] = device
        else:
            found.pop(each.mount_point, None)  # something that is no device lies over it
    return found


def _text(path: Path) -> str | None:
    return text_or_none(path, errno.ENOTDIR, errno.EACCES)
