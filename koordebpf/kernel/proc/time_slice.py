"""How long a thread asks to run at a time: one that asks for little is let onto a busy CPU at once.

Source: kernel/sched/fair.c, PREEMPT_SHORT and custom_slice (since v6.12, commits 85e511df3cec and 857b158dc5e8);
        include/uapi/linux/sched/types.h, struct sched_attr.
"""

from __future__ import annotations

import ctypes
import os

from koordebpf.units import NS_PER_MS

SHORTEST_NS = NS_PER_MS // 10  # kernel/sched/syscalls.c clamps to it
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0


class _SchedAttr(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("sched_policy", ctypes.c_uint32),
        ("sched_flags", ctypes.c_uint64),
        ("sched_nice", ctypes.c_int32),
        ("sched_priority", ctypes.c_uint32),
        ("sched_runtime", ctypes.c_uint64),
        ("sched_deadline", ctypes.c_uint64),
        ("sched_period", ctypes.c_uint64),
    )


def shorten_time_slice(slice_ns: int = SHORTEST_NS) -> str | None:
    """Let the calling thread ask for so little at a time, at the nice level that it has; return why not, or None.

    Kernels before v6.12 take the call and change nothing.
    """
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return f"sched_setattr: not known on {os.uname().machine}"
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _SchedAttr(ctypes.sizeof(_SchedAttr), _SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, ctypes.byref(attr), 0) != 0:
        return f"sched_setattr: {os.strerror(ctypes.get_errno())}"
    return None
