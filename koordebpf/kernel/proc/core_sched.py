"""Core scheduling: tasks run on the threads of one core at the same time only if they have the same cookie.

Source:  prctl(2), PR_SCHED_CORE; kernel/sched/core_sched.c, since Linux 5.14; Documentation/admin-guide/hw-vuln/
         core-scheduling.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable

from koordebpf.errors import SupportError
from koordebpf.kernel.io.worker import Supervisor

PR_SCHED_CORE = 62  # include/uapi/linux/prctl.h, as those below
_GET, _CREATE, _SHARE_TO, _SHARE_FROM = 0, 1, 2, 3
_THREAD, _THREAD_GROUP = 0, 1

_libc = ctypes.CDLL(None, use_errno=True)


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
