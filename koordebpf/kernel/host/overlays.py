"""The overlay mounts of the node, which runtimes make for root filesystems, and paths as the node has them."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import msgspec

from koordebpf.kernel.proc.mounts import MOST_BYTES, read_mounts, unescaped

_PROC = Path("/proc")
_SYS_OPENAT2 = 437  # the same on every architecture, since Linux 5.6
_RESOLVE_IN_ROOT = 0x10  # include/uapi/linux/openat2.h
_LIBC = ctypes.CDLL(None, use_errno=True)


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
