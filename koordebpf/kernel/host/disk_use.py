"""What a directory occupies of its filesystem: by its project quota, or by a walk with bounds; and overlay mounts.

Its owner may write there at the same time, and may be hostile. Nothing but directories is opened, each from its parent
and without following links; the walk never leaves the filesystem, and its memory and descriptors are bounded.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from koordebpf.kernel.proc.mounts import MOST_BYTES, read_mounts, unescaped

_FS_IOC_FSGETXATTR = 0x801C581F  # include/uapi/linux/fs.h
_XATTR = struct.Struct("<5I8s")  # struct fsxattr: xflags, extsize, nextents, projid, cowextsize
_FS_XFLAG_PROJINHERIT = 0x200
_SYS_QUOTACTL_FD = 443  # the same on every architecture, since Linux 5.14
_Q_GETQUOTA_PROJECT = 0x800007 << 8 | 2  # include/uapi/linux/quota.h: QCMD(Q_GETQUOTA, PRJQUOTA)
_DQBLK = struct.Struct("<8QI4x")  # struct if_dqblk; curspace is the third, curinodes the sixth
_LIBC = ctypes.CDLL(None, use_errno=True)
_PROC = Path("/proc")
_SYS_OPENAT2 = 437  # the same on every architecture, since Linux 5.6
_RESOLVE_IN_ROOT = 0x10  # include/uapi/linux/openat2.h
_BLOCK_BYTES = 512  # of st_blocks, whatever the filesystem's own (stat(2))
_MAX_DEPTH = 64  # Why: two descriptors a level; images and package trees have 30 levels
_MAX_LINKED = 1 << 16  # Why: 6 MiB; further files with several names are left out
_CHUNK = 256  # Why: 1 ms of CPU between two pauses
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The entry was removed, renamed or replaced since it was listed.
_RACES = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def project_of(directory: int) -> int | None:
    """Return the project that a directory gives to all that is made in it; None: none, or no such filesystem.

    Source:  ioctl(2) FS_IOC_FSGETXATTR.
    """
    try:
        flags, _, _, project, _, _ = _XATTR.unpack(fcntl.ioctl(directory, _FS_IOC_FSGETXATTR, bytes(_XATTR.size)))
    except OSError:
        return None
    return project if project and flags & _FS_XFLAG_PROJINHERIT else None


def project_use(directory: int, project: int) -> DiskUse | None:
    """Return what a project occupies; None: its filesystem does not count it, or this process may not ask.

    Needs:   CAP_SYS_ADMIN.
    Source:  quotactl_fd(2), Q_GETQUOTA.
    Cost:    3 µs.
    """
    block = ctypes.create_string_buffer(_DQBLK.size)
    if _LIBC.syscall(_SYS_QUOTACTL_FD, directory, _Q_GETQUOTA_PROJECT, project, block) != 0:
        return None
    values = _DQBLK.unpack(block.raw)
    return DiskUse(values[2], values[5])


class Overlay(msgspec.Struct, frozen=True):
    """One overlay mount. `upper` is its writable layer, as the runtime named it; None: it has none, or a relative one.

    `device` is that of the mount, as 0:45: no other one has it at the same time.
    """

    device: str
    mount_point: Path
    upper: Path | None


class NodeFiles(msgspec.Struct, frozen=True):
    """Where the node's mounts are listed and where its root directory is, as this process reaches them."""

    mountinfo: Path
    root: Path


def node_files(proc: Path = _PROC) -> NodeFiles:
    """Return pid 1's, where this process has mounts of its own and may look at those of pid 1; else its own.

    Needs:   for pid 1's the node's pid namespace (hostPID) and CAP_SYS_PTRACE.
    """
    try:
        is_other = (proc / "1/ns/mnt").readlink() != (proc / "self/ns/mnt").readlink()
        if is_other and (proc / "1/root/proc").exists():
            return NodeFiles(proc / "1/mountinfo", proc / "1/root")
    except OSError:
        pass
    return NodeFiles(proc / "self/mountinfo", Path("/"))


def overlays(mountinfo: Path, max_bytes: int = MOST_BYTES) -> tuple[Overlay, ...]:
    """Return the overlays of a table of mounts, of which the first `max_bytes` are read.

    Raises:  OSError: it cannot be read.
    Source:  fs/overlayfs/params.c, ovl_show_options.
    Cost:    8 µs an overlay.
    """
    found = read_mounts(mountinfo, ("overlay",), max_bytes)
    return tuple(Overlay(each.device, Path(each.mount_point), _upper(each.options)) for each in found)


def open_below(root: Path, path: Path, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> int:
    """Return a descriptor of a path that is meant from this root: also links in it lead nowhere else.

    Raises:  OSError: it is not there, or may not be opened.
    Source:  openat2(2), since Linux 5.6; before, links are followed as they stand.
    """
    flags |= os.O_CLOEXEC
    relative = os.fsencode(str(path).lstrip("/") or ".")
    how = (ctypes.c_uint64 * 3)(flags, 0, _RESOLVE_IN_ROOT)
    base = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = int(_LIBC.syscall(_SYS_OPENAT2, base, relative, ctypes.byref(how), ctypes.sizeof(how)))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code in (errno.ENOSYS, errno.EPERM):  # EPERM: seccomp filters that do not know the call
            return os.open(relative, flags, dir_fd=base)
        raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(base)


# Within an option blanks and commas are escaped once more than in the fields of the table.
def _upper(options: str) -> Path | None:
    written = next((each[9:] for each in options.split(",") if each.startswith("upperdir=")), "")
    upper = unescaped(os.fsencode(written))
    return Path(upper) if upper.startswith("/") and "\0" not in upper else None


class DiskUse(msgspec.Struct, frozen=True):
    """What is occupied. `is_cut`: at least so much; a bound was reached, or a part cannot be read."""

    used_bytes: int
    inodes: int
    is_cut: bool = False


def disk_use(directory: int, max_entries: int, pause: Callable[[], bool]) -> DiskUse:
    """Return what a directory occupies, itself included; a file with several names once.

    Args:
        directory: a descriptor, which stays open.
        max_entries: names that are looked at; with more, the rest is not.
        pause: called after each 256 of them; False ends the walk.
    Raises:  OSError: the directory itself cannot be read.
    Source:  containerd's continuity/fs, DiskUsage, has the same sums: allocated blocks, each inode once.
    Cost:    4 µs an entry.
    """
    return _Walk(directory, max_entries, pause).run()


class _Walk:
    def __init__(self, directory: int, max_entries: int, pause: Callable[[], bool]) -> None:
        self._left = max_entries
        self._pause = pause
        self._linked: set[int] = set()
        self._bytes = self._inodes = 0
        self._is_cut = False
        found = os.fstat(directory)
        self._device = found.st_dev
        self._count(found)
        # A descriptor of its own: reading moves the offset of one that is duplicated.
        self._levels: list[tuple[int, Iterator[os.DirEntry[str]]]] = []
        self._enter(os.open(".", _OPEN, dir_fd=directory))

    def run(self) -> DiskUse:
        looked = 0
        try:
            while self._levels:
                fd, entries = self._levels[-1]
                try:
                    entry = next(entries, None)
                except OSError:
                    entry, self._is_cut = None, True
                if entry is None:
                    self._leave()
                    continue
                looked += 1
                if looked > self._left or (looked % _CHUNK == 0 and not self._pause()):
                    self._is_cut = True
                    break
                self._visit(fd, entry)
        finally:
            while self._levels:
                self._leave()
        return DiskUse(self._bytes, self._inodes, self._is_cut)

    def _visit(self, fd: int, entry: os.DirEntry[str]) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
            if found.st_dev != self._device:
                return
            self._count(found)
            if not stat.S_ISDIR(found.st_mode):
                return
            if len(self._levels) >= _MAX_DEPTH:
                self._is_cut = True
                return
            below = os.open(entry.name, _OPEN, dir_fd=fd)
        except OSError as error:
            if error.errno not in _RACES:
                self._is_cut = True
            return
        self._enter(below)

    # Takes the descriptor over.
    def _enter(self, fd: int) -> None:
        try:
            if os.fstat(fd).st_dev == self._device:  # else a mount took its place
                self._levels.append((fd, os.scandir(fd)))
                return
        except OSError:
            self._is_cut = True
        os.close(fd)

    def _leave(self) -> None:
        fd, entries = self._levels.pop()
        with contextlib.suppress(OSError):
            entries.close()  # type: ignore[attr-defined]  # of os.scandir
        os.close(fd)

    def _count(self, found: os.stat_result) -> None:
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if found.st_ino in self._linked:
                return
            if len(self._linked) >= _MAX_LINKED:
                self._is_cut = True
                return
            self._linked.add(found.st_ino)
        self._bytes += found.st_blocks * _BLOCK_BYTES
        self._inodes += 1
