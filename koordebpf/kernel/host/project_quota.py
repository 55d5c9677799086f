"""What a directory's project occupies of its filesystem, as project quotas of ext4 and XFS count it."""

from __future__ import annotations

import ctypes
import fcntl
import struct

from koordebpf.kernel.host.disk_use import DiskUse

_FS_IOC_FSGETXATTR = 0x801C581F  # include/uapi/linux/fs.h
_XATTR = struct.Struct("<5I8s")  # struct fsxattr: xflags, extsize, nextents, projid, cowextsize
_FS_XFLAG_PROJINHERIT = 0x200
_SYS_QUOTACTL_FD = 443  # the same on every architecture, since Linux 5.14
_Q_GETQUOTA_PROJECT = 0x800007 << 8 | 2  # include/uapi/linux/quota.h: QCMD(Q_GETQUOTA, PRJQUOTA)
_DQBLK = struct.Struct("<8QI4x")  # struct if_dqblk; curspace is the third, curinodes the sixth
_LIBC = ctypes.CDLL(None, use_errno=True)


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
