"""The table of mounts of a process: the one reader of it.

Names in it are bytes of anyone's choice: a tenant's `subPath` is the root of a mount. A line ends at its line feed
alone, fields are decoded as file names are, and a line that is no mount is passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from koordebpf.kernel.io.regular_file import read_at_most
from koordebpf.units import format_bytes

MOUNTINFO = Path("/proc/self/mountinfo")
MOST_BYTES = 1 << 24  # 5,000 overlays with long lists of lower layers
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")  # fs/seq_file.c, mangle_path
_FIELDS, _FIELDS_OF_TYPE = 6, 3  # before the lone hyphen, of which optional ones may follow, and behind it


# Which filesystem a path is on.


def filesystem_of(path: Path, mounts: Path = MOUNTINFO) -> str | None:
    """Return the type of the filesystem that `path` is on, as ext4; None: not known, as on btrfs.

    Source:  proc_pid_mountinfo(5), the device.
    """
    try:
        device = path.stat().st_dev
        table = read_mounts(mounts)
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((each.fstype for each in table if each.device == wanted), None)


class Mount(msgspec.Struct, frozen=True, gc=False):
    """One mount. `device` is major:minor; `options` are those of its superblock, separated by commas, as they stand."""

    device: str
    root: str
    mount_point: str
    fstype: str
    source: str
    options: str


def read_mounts(
    mountinfo: Path = MOUNTINFO, fstypes: Collection[str] | None = None, max_bytes: int = MOST_BYTES
) -> tuple[Mount, ...]:
    """Return the mounts of a table, of which the first `max_bytes` are read; of all types or of these.

    Options may have blanks: 9p and others do not escape them. They are last, so the fields before them are right.

    Source:  proc_pid_mountinfo(5); fs/proc_namespace.c, show_mountinfo.
    Raises:  OSError: it cannot be read.
    Cost:    3 µs a mount.
    """
    with mountinfo.open("rb") as file:
        table = read_at_most(file, max_bytes)
    wanted = None if fstypes is None else frozenset(map(os.fsencode, fstypes))
    return tuple(_mounts(table, wanted))


def read_part(mountinfo: Path = MOUNTINFO, max_bytes: int = MOST_BYTES) -> str:
    """Return which part of a table `read_mounts` reads, for the sentence that something is not in it.

    Raises:  OSError: it cannot be read.
    """
    with mountinfo.open("rb") as file:  # its size is 0 in procfs
        is_cut = len(read_at_most(file, max_bytes + 1)) > max_bytes
    return f"the first {format_bytes(max_bytes)} of {mountinfo}, which is longer," if is_cut else str(mountinfo)


def _mounts(table: bytes, wanted: frozenset[bytes] | None) -> Iterator[Mount]:
    for line in table.split(b"\n"):
        head, _, tail = line.partition(b" - ")
        after = tail.split(b" ", _FIELDS_OF_TYPE - 1)
        if wanted is not None and after[0] not in wanted:
            continue
        before = head.split(b" ")
        if len(before) < _FIELDS or len(after) < _FIELDS_OF_TYPE:
            continue
        _, _, device, root, mount_point, *_ = before
        fstype, source, options = after
        root_name, place = unescaped(root), unescaped(mount_point)
        if place.startswith("/") and "\0" not in place:
            number, kind = os.fsdecode(device), os.fsdecode(fstype)
            yield Mount(number, root_name, place, kind, unescaped(source), os.fsdecode(options))


def unescaped(field: bytes) -> str:
    r"""Return a field as the kernel had it before it escaped blanks.

    >>> unescaped(rb"/my\040disk")
    '/my disk'
    """
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), field))
