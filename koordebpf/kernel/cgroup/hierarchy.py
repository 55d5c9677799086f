"""The memory controller's cgroup file system, v1 or v2: where it is, what is in it, and one cgroup's memory.

Refuses: knowing what a pod is. A cgroup is named by its id, the inode number of its directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.kernel.cgroup.files import V1_NO_LIMIT_BYTES
from koordebpf.kernel.io.table import Keyed, field, is_number, keyed, number, report_odd, rows, shown
from koordebpf.kernel.io.text_file import KeptFiles
from koordebpf.kernel.proc.mounts import MOUNTINFO, read_mounts, read_part

_FILE_BYTES = 1 << 14  # memory.stat of 6.18 has 1.6 KiB, of v1 1.2 KiB
_GONE = (errno.ENODEV, errno.ENOENT)
TOO_DEEP = (errno.ENAMETOOLONG, errno.ELOOP)
# Why 32: a container of a pod of a nested node is ten levels down. A user who may write a cgroup file system can make
# thousands of levels, and nothing is decided by those.
MAX_LEVELS = 32
_MOST_LIMIT = (1 << 63) - 1  # of page counters; v1 prints nearly that for none
_EMPTY_NLINK = 2  # of a directory: its name and its own dot


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


def find_memory_hierarchy(mountinfo: Path = MOUNTINFO, cgroups: Path = Path("/proc/cgroups")) -> MemoryHierarchy:
    """Find the mount of the hierarchy that has the memory controller: pure v2, v1, or hybrid with either.

    Source:  proc_pid_mountinfo(5); cgroup.controllers of a v2 mount; /proc/cgroups.
    Raises:  SupportError: no such mount. KernelFileError: the row of memory has not its form.
    """
    mounts = _cgroup_mounts(mountinfo)
    for mount in mounts:
        if mount.fstype == "cgroup2" and "memory" in _controllers(mount.mount_point):
            return MemoryHierarchy(2, mount.mount_point, 0)
    v1 = {name: mount for mount in reversed(mounts) if mount.fstype == "cgroup" for name in mount.options}
    memory, odd = _proc_cgroups(cgroups, b"memory")
    if "memory" in v1:
        if memory is None:
            rule = "must have a row for memory, which is mounted as cgroup v1: its name and three numbers"
            raise KernelFileError(str(cgroups), shown(odd), rule)
        freezer = v1.get("freezer")
        hierarchy_id, _ = memory
        return MemoryHierarchy(1, v1["memory"].mount_point, hierarchy_id, freezer.mount_point if freezer else None)
    if memory is not None and not memory[1]:
        reason, remedy = "it is disabled", "Boot with cgroup_enable=memory and without cgroup_disable=memory"
    else:
        reason = f"no cgroup mount in {read_part(mountinfo)} has it"
        remedy = "Mount it: mount -t cgroup2 none /sys/fs/cgroup; in a container, mount the host's /sys/fs/cgroup"
    raise SupportError("memory controller", reason, remedy)


class ControllerMount(msgspec.Struct, frozen=True):
    """Where one controller is mounted."""

    version: Literal[1, 2]
    mount_point: Path


def find_controllers(mountinfo: Path = MOUNTINFO) -> dict[str, ControllerMount]:
    """Return the mounts by controller: pure v2, v1, or hybrid with each controller on either.

    Source:  proc_pid_mountinfo(5); cgroup.controllers of a v2 mount.
    Raises:  SupportError: no procfs.
    """
    found: dict[str, ControllerMount] = {}
    for mount in _cgroup_mounts(mountinfo):
        is_v2 = mount.fstype == "cgroup2"
        for name in _controllers(mount.mount_point) if is_v2 else mount.options:
            found.setdefault(name, ControllerMount(2 if is_v2 else 1, mount.mount_point))
    return found


def find_perf_event_mount(mountinfo: Path = MOUNTINFO) -> Path | None:
    """Return where cgroups are counted by perf events: v1's own hierarchy, else v2, which always can; None: nowhere."""
    mounts = _cgroup_mounts(mountinfo)
    v1 = (each.mount_point for each in mounts if each.fstype == "cgroup" and "perf_event" in each.options)
    return next(v1, next((each.mount_point for each in mounts if each.fstype == "cgroup2"), None))


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


def walk(
    root: Path, mount_point: Path | None = None, is_closed: Callable[[int], bool] | None = None
) -> Iterator[tuple[int, int, str]]:
    """Yield (cgroup id, parent's id, path) of `root` and everything below it, parents first.

    The path is relative to `mount_point` (default: `root`) and "" for the mount itself, whose parent is 0. What
    vanishes on the way is left out, and so is what is deeper than `MAX_LEVELS` or than a path may be long.

    Args:
        root: where to begin.
        mount_point: of its hierarchy.
        is_closed: whether to leave out what is below a cgroup that was yielded.
    Raises:  CgroupGone: `root` is gone.
    Cost:    25 µs a cgroup that has others below it, most of it the kernel listing its files; 10 µs one that has none.
    """
    mount_point = mount_point or root
    relative = root.relative_to(mount_point).as_posix()
    top = "" if relative == "." else relative
    stack = [(cgroup_id(root), cgroup_id(root.parent) if top else 0, top)]
    deepest = top.count("/") + bool(top) + MAX_LEVELS
    base = os.fspath(mount_point)
    while stack:
        own_id, parent_id, path = stack.pop()
        if is_closed is not None and path != top and is_closed(parent_id):
            continue
        directory = f"{base}/{path}" if path else base
        try:
            is_leaf = os.stat(directory).st_nlink == _EMPTY_NLINK  # noqa: PTH116 - a Path takes longer than the call
            children = [] if is_leaf else _children(directory)
        except OSError as error:
            if error.errno not in (*_GONE, *TOO_DEEP):
                raise
            continue
        yield own_id, parent_id, path
        if path.count("/") + bool(path) >= deepest:
            continue
        stack.extend((child_id, own_id, f"{path}/{name}" if path else name) for child_id, name in children)


def _children(directory: str) -> list[tuple[int, str]]:
    # d_ino is the kernfs id, like st_ino, so that no entry needs a stat.
    with os.scandir(directory) as entries:
        return [(entry.inode(), entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]


class CgroupMemoryStat(msgspec.Struct, frozen=True, gc=False):
    """Memory of one cgroup with its children. None: this kernel or cgroup version does not tell."""

    usage_bytes: int
    inactive_anon_bytes: int
    active_anon_bytes: int
    inactive_file_bytes: int
    active_file_bytes: int
    unevictable_bytes: int
    shmem_bytes: int | None
    slab_reclaimable_bytes: int | None = None  # v2 only
    hugetlb_bytes: int | None = None  # of the usage: v2 mounted with memory_hugetlb_accounting, since Linux 6.14


_LRU = (b"inactive_anon", b"active_anon", b"inactive_file", b"active_file", b"unevictable")
# Those that must be there, and those that may.
_STAT_ROWS = {
    1: (tuple(b"total_" + name for name in _LRU), (b"total_shmem",)),
    2: (_LRU, (b"shmem", b"slab_reclaimable", b"hugetlb")),
}
_ALL_STAT_ROWS = {version: frozenset(needed + optional) for version, (needed, optional) in _STAT_ROWS.items()}
_EVENTS = (b"high", b"max", b"oom", b"oom_kill")


class CgroupMemory(KeptFiles):
    """Reads one memory cgroup through kept fds, each opened at its first use.

    Source:  v2 memory.current, memory.max, memory.stat, memory.events; v1 memory.usage_in_bytes, memory.limit_in_bytes,
             memory.stat (its total_… rows, which include the children), memory.oom_control; of swap v2
             memory.swap.current, v1 memory.memsw.usage_in_bytes, which is memory and swap together.
    Raises:  every method: CgroupGone: it was removed. SupportError: it has no such file. KernelFileError: garbage.
    Cost:    usage 1 µs; `read` 15 µs, most of it the kernel's memory.stat.
    """

    def __init__(self, path: Path, version: Literal[1, 2]) -> None:
        self.path = path
        self.version = version
        self._directory = str(path)
        self._fds: dict[str, int] = {}
        self._rows = _STAT_ROWS[version]
        self._has_swap = True  # until it is found that the kernel accounts none

    def usage_bytes(self) -> int:
        """Return memory.current, v1 memory.usage_in_bytes."""
        return self._number("memory.current" if self.version == 2 else "memory.usage_in_bytes")

    def limit_bytes(self) -> int | None:
        """Return memory.max, v1 memory.limit_in_bytes; None where there is no limit."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        text = self._pread(name)
        if self.version == 2 and text.strip() == b"max":
            return None
        limit = number(self._at(name), text, most=_MOST_LIMIT)
        return None if self.version == 1 and limit >= V1_NO_LIMIT_BYTES else limit

    def read(self) -> CgroupMemoryStat:
        """Return usage and LRU sizes as they are now."""
        return self.stat(self.usage_bytes())

    def stat(self, usage_bytes: int) -> CgroupMemoryStat:
        """Return the LRU sizes with a usage that is given: the machine's root has none on v2."""
        needed, optional = self._rows
        stat = self._keyed("memory.stat", _ALL_STAT_ROWS[self.version])
        # v1 shows shmem since Linux 4.10, v2 always; the other two are in v2 only.
        return CgroupMemoryStat(usage_bytes, *map(stat.required, needed), *map(stat.optional, optional))

    def swap_bytes(self, usage_bytes: int) -> int:
        """Return what it has in swap, its usage being `usage_bytes`; 0 where swap is not accounted (swapaccount=0).

        0 too where the file is odd, which its reader counts: the rest of the cgroup is known all the same.

        Raises:  CgroupGone: it was removed.
        Cost:    2 µs.
        """
        if not self._has_swap:
            return 0
        try:
            if self.version == 2:
                return self._number("memory.swap.current")
            return max(self._number("memory.memsw.usage_in_bytes") - usage_bytes, 0)
        except SupportError:
            self._has_swap = False
            return 0
        except KernelFileError:
            return 0

    def oom_kills(self) -> int | None:
        """Return how many tasks the OOM killer took since the cgroup was made: v2 with children, v1 without.

        None before Linux 4.13, which does not count them.
        """
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return self._keyed(name, _EVENTS).optional(b"oom_kill")

    def events(self) -> tuple[int, int, int, int]:
        """Return high, max, oom and oom_kill of memory.events, children included.

        v1: without children; memory.failcnt for max, and 0 for what it does not count.
        """
        if self.version == 1:
            return 0, self._number("memory.failcnt"), 0, self.oom_kills() or 0
        events = self._keyed("memory.events", _EVENTS)
        high, maximum, oom, oom_kill = map(events.required, _EVENTS)
        return high, maximum, oom, oom_kill

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
            raise KernelFileError(self._at(name), shown(text), f"must be shorter than {_FILE_BYTES} bytes")
        return text

    # Text: a Path takes longer than the call.
    def _at(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _keyed(self, name: str, wanted: Collection[bytes]) -> Keyed:
        return keyed(self._at(name), self._pread(name), wanted)

    def _number(self, name: str) -> int:
        return number(self._at(name), self._pread(name), "must be a whole number of bytes or events")


def held_bytes(path: Path, version: Literal[1, 2]) -> int:
    """Return what a cgroup holds that cannot be reclaimed: anonymous, tmpfs and locked; 0 where it is gone.

    Raises:  KernelFileError: nothing is known of it.
    """
    try:
        with CgroupMemory(path, version) as memory:
            stat = memory.read()
    except (CgroupGone, SupportError):
        return 0
    return stat.inactive_anon_bytes + stat.active_anon_bytes + stat.unevictable_bytes


def task_count(path: Path) -> int | None:
    """Return how many tasks a cgroup has; None where it has children, whose tasks would count too, or is gone.

    Source:  v2 cgroup.threads, v1 tasks; a directory has a link from each of its children.
    Cost:    20 µs.
    """
    try:
        if path.stat().st_nlink > _EMPTY_NLINK:
            return None
        threads = path / "cgroup.threads"
        return (threads if threads.exists() else path / "tasks").read_bytes().count(b"\n")
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


# The mounts that reach furthest first: in a cgroup namespace of its own a process sees the host's root as "/../..", its
# own as "/", and a container's bind mount of one cgroup as that cgroup's path.
def _cgroup_mounts(mountinfo: Path) -> list[_Mount]:
    try:
        found = read_mounts(mountinfo, ("cgroup", "cgroup2"))
    except OSError as error:
        raise SupportError("memory controller", f"{mountinfo}: {error.strerror}", "Mount procfs at /proc") from None
    mounts = [_Mount(each.fstype, each.root, Path(each.mount_point), tuple(each.options.split(","))) for each in found]
    return sorted(mounts, key=lambda mount: _reach(mount.root))


# A name such as "a..b" is a cgroup's, and no way up.
def _reach(root: str) -> tuple[int, int]:
    return -root.split("/").count(".."), len(root)


def _controllers(mount_point: Path) -> list[str]:
    try:
        return [field(name) for name in (mount_point / "cgroup.controllers").read_bytes().split()]
    except OSError:
        return []  # hidden below another mount, or not ours to read: not usable then


# Hierarchy id and whether it is enabled, of one controller; else a row of it that has not that form. Since Linux 6.14
# the file shows v1-capable controllers only, and kernels without v1 support have none of them: a missing file or row
# says nothing about v2.
def _proc_cgroups(path: Path, controller: bytes) -> tuple[tuple[int, bool] | None, bytes]:
    found: tuple[int, bool] | None = None
    odd = b""
    try:
        table = path.read_bytes()
    except OSError:
        return found, odd
    for row in rows(table):
        name, *numbers = row.split()
        if name != controller:
            continue
        if found is None and len(numbers) == 3 and all(map(is_number, numbers)):
            found = int(numbers[0]), numbers[2] == b"1"
        else:
            odd = odd or row
            report_odd(path, row)
    return found, odd
