"""The memory controller's cgroup file system, v1 or v2: where it is, what is in it, and one cgroup's memory.

Refuses: knowing what a pod is. A cgroup is named by its id, the inode number of its directory.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from koordebpf.errors import CgroupGone, KernelFileError, SupportError

# PAGE_COUNTER_MAX in bytes is LONG_MAX rounded down to a page, 9223372036854771712 with 4 KiB pages; a limit within the
# largest page size below 2^63 is none.
_V1_NO_LIMIT_BYTES = (1 << 63) - (1 << 16)

_FILE_BYTES = 1 << 14  # memory.stat of 6.18 has 1.6 KiB, of v1 1.2 KiB
_GONE = (errno.ENODEV, errno.ENOENT)


class MemoryHierarchy(msgspec.Struct, frozen=True):
    """Where the memory controller is mounted.

    `hierarchy_id` is column 2 of /proc/cgroups, and 0 on v2. `freezer_mount_point` is the v1 freezer's, None where
    there is none and on v2, which freezes through cgroup.freeze.
    """

    version: Literal[1, 2]
    mount_point: Path
    hierarchy_id: int
    freezer_mount_point: Path | None = None


class _Mount(msgspec.Struct, frozen=True):
    fstype: str
    root: str
    mount_point: Path
    options: tuple[str, ...]


def find_memory_hierarchy(
    mountinfo: Path = Path("/proc/self/mountinfo"), cgroups: Path = Path("/proc/cgroups")
) -> MemoryHierarchy:
    """Find the mount of the hierarchy that has the memory controller: pure v2, v1, or hybrid with either.

    Source:  proc_pid_mountinfo(5); cgroup.controllers of a v2 mount; /proc/cgroups.
    Raises:  SupportError: no such mount. KernelFileError: a line has not its form.
    """
    mounts = _cgroup_mounts(mountinfo)
    for mount in mounts:
        if mount.fstype == "cgroup2" and "memory" in _controllers(mount.mount_point):
            return MemoryHierarchy(2, mount.mount_point, 0)
    v1 = {name: mount for mount in reversed(mounts) if mount.fstype == "cgroup" for name in mount.options}
    rows = _proc_cgroups(cgroups)
    if "memory" in v1:
        if "memory" not in rows:
            raise KernelFileError(str(cgroups), "", "must have a row for memory, which is mounted as cgroup v1")
        freezer = v1.get("freezer")
        hierarchy_id, _ = rows["memory"]
        return MemoryHierarchy(1, v1["memory"].mount_point, hierarchy_id, freezer.mount_point if freezer else None)
    if "memory" in rows and not rows["memory"][1]:
        reason, remedy = "it is disabled", "Boot with cgroup_enable=memory and without cgroup_disable=memory"
    else:
        reason = f"no cgroup mount in {mountinfo} has it"
        remedy = "Mount it: mount -t cgroup2 none /sys/fs/cgroup; in a container, mount the host's /sys/fs/cgroup"
    raise SupportError("memory controller", reason, remedy)


def cgroup_id(path: Path | int) -> int:
    """Return the id of the cgroup at a path or behind a directory's fd.

    Raises:  CgroupGone: there is none.
    """
    try:
        return (os.fstat(path) if isinstance(path, int) else path.stat()).st_ino
    except OSError as error:
        if error.errno in _GONE:
            raise CgroupGone(str(path)) from None
        raise


def walk(root: Path, mount_point: Path | None = None) -> Iterator[tuple[int, int, str]]:
    """Yield (cgroup id, parent's id, path) of `root` and everything below it, parents first.

    The path is relative to `mount_point` (default: `root`) and "" for the mount itself, whose parent is 0. What
    vanishes on the way is left out.

    Raises:  CgroupGone: `root` is gone.
    Cost:    20 µs a cgroup; most of it is the kernel listing its files.
    """
    mount_point = mount_point or root
    relative = root.relative_to(mount_point).as_posix()
    top = "" if relative == "." else relative
    stack = [(cgroup_id(root), cgroup_id(root.parent) if top else 0, top)]
    base = os.fspath(mount_point)
    while stack:
        own_id, parent_id, path = stack.pop()
        try:
            # d_ino is the kernfs id, like st_ino, so that no entry needs a stat.
            with os.scandir(f"{base}/{path}" if path else base) as entries:
                children = [(entry.inode(), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        yield own_id, parent_id, path
        stack.extend((child_id, own_id, f"{path}/{name}" if path else name) for child_id, name in children)


class CgroupMemoryStat(msgspec.Struct, frozen=True, gc=False):
    """Memory of one cgroup with its children. None: this kernel or cgroup version does not tell."""

    usage_bytes: int
    inactive_anon_bytes: int
    active_anon_bytes: int
    inactive_file_bytes: int
    active_file_bytes: int
    unevictable_bytes: int
    shmem_bytes: int | None
    slab_reclaimable_bytes: int | None  # v2 only


class CgroupMemory:
    """Reads one memory cgroup through kept fds, each opened at its first use.

    Source:  v2 memory.current, memory.max, memory.stat, memory.events; v1 memory.usage_in_bytes, memory.limit_in_bytes,
             memory.stat (its total_… rows, which include the children), memory.oom_control.
    Raises:  every method: CgroupGone: it was removed. SupportError: it has no such file. KernelFileError: garbage.
    Cost:    usage 1 µs; `read` 15 µs, most of it the kernel's memory.stat.
    """

    def __init__(self, path: Path, version: Literal[1, 2]) -> None:
        self.path = path
        self.version = version
        self._fds: dict[str, int] = {}
        prefix = "" if version == 2 else "total_"
        self._keys = tuple(
            f"{prefix}{name}".encode()
            for name in ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable", "shmem")
        )

    def usage_bytes(self) -> int:
        """Return memory.current, v1 memory.usage_in_bytes."""
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return self._number(name, self._pread(name).strip())

    def limit_bytes(self) -> int | None:
        """Return memory.max, v1 memory.limit_in_bytes; None where there is no limit."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        text = self._pread(name).strip()
        if self.version == 2 and text == b"max":
            return None
        limit = self._number(name, text)
        return None if self.version == 1 and limit >= _V1_NO_LIMIT_BYTES else limit

    def read(self) -> CgroupMemoryStat:
        """Return usage and LRU sizes as they are now."""
        usage = self.usage_bytes()
        stat = self._pairs("memory.stat")
        inactive_anon, active_anon, inactive_file, active_file, unevictable, shmem = self._keys
        # v1 shows shmem since Linux 4.10, v2 always; reclaimable slab stands in v2 only.
        return CgroupMemoryStat(
            usage,
            self._required("memory.stat", stat, inactive_anon),
            self._required("memory.stat", stat, active_anon),
            self._required("memory.stat", stat, inactive_file),
            self._required("memory.stat", stat, active_file),
            self._required("memory.stat", stat, unevictable),
            self._optional("memory.stat", stat, shmem),
            self._optional("memory.stat", stat, b"slab_reclaimable") if self.version == 2 else None,
        )

    def oom_kills(self) -> int | None:
        """Return how many tasks the OOM killer took since the cgroup was made: v2 with children, v1 without.

        None before Linux 4.13, which does not count them.
        """
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return self._optional(name, self._pairs(name), b"oom_kill")

    def close(self) -> None:
        """Close every fd."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pread(self, name: str) -> bytes:
        try:
            fd = self._fds.get(name)
            if fd is None:
                fd = self._fds[name] = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(fd, _FILE_BYTES, 0)
        except OSError as error:
            if error.errno == errno.ENOENT and self.path.is_dir():
                raise SupportError(
                    f"{self.path / name}",
                    "the cgroup has no such file",
                    "Enable the memory controller in its parent's cgroup.subtree_control; the root cgroup never has it",
                ) from None
            if error.errno in _GONE:
                raise CgroupGone(str(self.path)) from None
            raise
        if len(text) == _FILE_BYTES:
            raise KernelFileError(f"{self.path / name}", _text(text), f"must be shorter than {_FILE_BYTES} bytes")
        return text

    def _pairs(self, name: str) -> dict[bytes, bytes]:
        lines = self._pread(name).splitlines()
        try:
            return dict(line.split(b" ") for line in lines)
        except ValueError:
            bad = next(line for line in lines if line.count(b" ") != 1)
            raise KernelFileError(f"{self.path / name}", _text(bad), "a line must be a key and a number") from None

    def _required(self, name: str, pairs: dict[bytes, bytes], key: bytes) -> int:
        if (value := pairs.get(key)) is None:
            raise KernelFileError(f"{self.path / name}", _text(b" ".join(pairs)), f"must have the key {_text(key)}")
        return self._number(name, value)

    def _optional(self, name: str, pairs: dict[bytes, bytes], key: bytes) -> int | None:
        return None if (value := pairs.get(key)) is None else self._number(name, value)

    def _number(self, name: str, text: bytes) -> int:
        if not text.isdigit():
            raise KernelFileError(f"{self.path / name}", _text(text), "must be a whole number of bytes or events")
        return int(text)


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


# The mounts that reach furthest first: in a cgroup namespace of its own a process sees the host's root as "/../..", its
# own as "/", and a container's bind mount of one cgroup as that cgroup's path.
def _cgroup_mounts(mountinfo: Path) -> list[_Mount]:
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError as error:
        raise SupportError("memory controller", f"{mountinfo}: {error.strerror}", "Mount procfs at /proc") from None
    mounts = []
    for line in lines:
        head, separator, tail = line.partition(" - ")
        before, after = head.split(" "), tail.split(" ")
        if not separator or len(before) < 6 or len(after) != 3:
            raise KernelFileError(str(mountinfo), line, "a line must have 6 fields, a dash and 3 fields")
        if after[0] in ("cgroup", "cgroup2"):
            mount_point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before[4])
            mounts.append(_Mount(after[0], before[3], Path(mount_point), tuple(after[2].split(","))))
    return sorted(mounts, key=lambda mount: (-mount.root.count("/.."), 0 if ".." in mount.root else len(mount.root)))


def _controllers(mount_point: Path) -> list[str]:
    try:
        return (mount_point / "cgroup.controllers").read_text().split()
    except OSError:
        return []  # hidden below another mount, or not ours to read: not usable then


# Controller → (hierarchy id, enabled). Since Linux 6.14 the file shows v1-capable controllers only, and kernels without
# v1 support have none of them: a missing file or row says nothing about v2.
def _proc_cgroups(path: Path) -> dict[str, tuple[int, bool]]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    rows = {}
    for line in lines:
        if line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != 4 or not all(field.isdigit() for field in fields[1:]):
            raise KernelFileError(str(path), line, "a row must be a name and three numbers")
        rows[fields[0]] = (int(fields[1]), fields[3] == "1")
    return rows
