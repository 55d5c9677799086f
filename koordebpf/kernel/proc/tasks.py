"""What the kernel keeps of a task: its cookie of core scheduling, its time slice, its oom_score_adj.

Tasks run on the threads of one core at the same time only if they have the same cookie. A thread that asks for a short
slice is let onto a busy CPU at once.

Source:  prctl(2), PR_SCHED_CORE; kernel/sched/core_sched.c, since Linux 5.14; Documentation/admin-guide/hw-vuln/
         core-scheduling.rst; kernel/sched/fair.c, PREEMPT_SHORT and custom_slice (since v6.12, commits 85e511df3cec and
         857b158dc5e8); include/uapi/linux/sched/types.h, struct sched_attr; fs/proc/base.c.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.subtree import read_file
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.units import NS_PER_MS

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
SHORTEST_NS = NS_PER_MS // 10  # kernel/sched/syscalls.c clamps to it
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0
PR_SCHED_CORE = 62  # include/uapi/linux/prctl.h, as those below
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = 0, 1, 2, 3
_THREAD, _THREAD_GROUP = 0, 1
_libc = ctypes.CDLL(None, use_errno=True)


def change_score(pid: int, container: str, score: int, only_from: int | None = None) -> int | None:
    """Set oom_score_adj of a process; return what it was before, None: it is gone, or in another cgroup.

    The directory of a process leads to no other one that gets its number later.

    Args:
        pid: of the process.
        container: the name of the cgroup's directory that it must be in, or below.
        score: what it is to have, -1000 to 1000.
        only_from: it is left alone unless it has this; None: whatever it has.
    Raises:  OSError: what the kernel says against it: EACCES for less than it has, without CAP_SYS_RESOURCE.
    Cost:    60 µs, 30 where it is left alone.
    """
    try:
        fd = os.open(f"/proc/{pid}", _DIRECTORY)
    except OSError:
        return None
    try:
        lines = read_file(fd, "cgroup").decode(errors="surrogateescape").split("\n")
        if not any(container in line.partition("/")[2].split("/") for line in lines):
            return None
        before = int(read_file(fd, "oom_score_adj"))
        if only_from in (None, before):
            file = os.open("oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=fd)
            try:
                os.write(file, str(score).encode())
            finally:
                os.close(file)
        return before
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    finally:
        os.close(fd)


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


def cookie_of(pid: int) -> int | None:
    """Return a process's cookie, as the kernel hashes it; 0: it has none. None: it is gone.

    Raises:  SupportError: this kernel or these CPUs have no core scheduling.
    Cost:    2 µs.
    """
    cookie = ctypes.c_ulong()
    return cookie.value if _prctl(_GET, pid, _THREAD, ctypes.byref(cookie)) else None


def give_new_cookie(pid: int) -> int | None:
    """Give all threads of a process a new cookie and return it; None: it is gone.

    Raises:  SupportError: this kernel or these CPUs have no core scheduling.
    """
    return cookie_of(pid) if _prctl(_CREATE, pid, _THREAD_GROUP, None) else None


def share_cookie(leader: int | None, pids: Iterable[int]) -> None:
    """Give processes the cookie of another one, or none; those that are gone are left out.

    Args:
        leader: whose cookie; None: no cookie.
        pids: of processes, each with all its threads.
    Raises:  SupportError: this kernel or these CPUs have no core scheduling.
    Cost:    0.2 ms for a thread, 3 µs a process.
    """

    def share() -> None:
        # A new thread has the cookie of the one that makes it, and this process has none.
        if leader is None or _prctl(_SHARE_FROM, leader, _THREAD, None):
            for pid in pids:
                _prctl(_SHARE_TO, pid, _THREAD_GROUP, None)

    _in_thread(share)


def _prctl(command: int, pid: int, scope: int, argument: object) -> bool:
    if _libc.prctl(PR_SCHED_CORE, command, ctypes.c_ulong(pid), ctypes.c_ulong(scope), argument) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.ESRCH:
        return False
    why = {errno.EINVAL: "no CONFIG_SCHED_CORE", errno.ENODEV: "no core has two threads"}.get(number)
    remedy = "Switch the feature gate CoreSched off"
    if number == errno.EPERM:  # ptrace(2), PTRACE_MODE_READ_REALCREDS
        remedy = "Run it with CAP_SYS_PTRACE (deploy/components/core-sched), or switch the feature gate CoreSched off"
    raise SupportError("core scheduling", why or os.strerror(number), remedy)


def _in_thread(work: Callable[[], None]) -> None:
    problems: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # of whatever kind: the caller raises it
            problems.append(error)

    thread = Supervisor("core-sched").thread(guarded)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
