"""Stop everything in a cgroup's subtree, and nothing else.

Owns: freezer, cgroup.kill, pidfds, process_mrelease. Split in two, because the signal must leave within a millisecond
and the rest takes as long as the memory is big: `Kill.begin` signals, `Kill.finish` waits, follows forks and gives
memory back early. Refuses: a directory that is not the cgroup that was meant, and a subtree that holds this process or
init.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

import msgspec

from koordebpf.errors import ActuationError
from koordebpf.kernel.freezer import freezer_states, write_state
from koordebpf.kernel.pod_directory import open_pod_directory
from koordebpf.units import NS_PER_MS

CgroupVersion = Literal[1, 2]

SYS_PROCESS_MRELEASE = 448  # include/uapi/asm-generic/unistd.h, the same number on every architecture; since v5.15
_BATCH = 256  # pidfds held at once while signalling: below the default limit of 1,024 open files
_KEPT_PIDFDS = 64  # tasks waited for by pidfd and given back early; the others are seen through cgroup.procs
_ROUND_WAIT_MS = 20  # a round waits this long for the kept pidfds before it looks for tasks forked meanwhile
_THAW_AFTER_S = 0.004  # process_mrelease holds the mm some µs after it was called; the rest is for a busy processor
_READ_BYTES = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class KillTarget(msgspec.Struct, frozen=True):
    """Which cgroup is meant. `cgroup_id` is the st_ino of `memory_path`, its kernfs id.

    `freezer_path` (v1 only) is the same relative directory of the freezer hierarchy, None where there is none.
    `pod_names` are those that the pod's directory may bear, as `pod_directory.bears` reads them; none: it is no pod's.
    """

    memory_path: Path
    cgroup_id: int
    version: CgroupVersion
    freezer_path: Path | None = None
    pod_names: tuple[str, ...] = ()


class KillReport(msgspec.Struct, frozen=True):
    """How a kill ended. Times are CLOCK_MONOTONIC nanoseconds.

    `left_tasks` are the processes still there at the deadline; `unseen_tasks` is 1 where some live in a pid namespace
    that this process cannot see, which only cgroup.kill reaches.
    """

    method: Literal["cgroup.kill", "cgroup.freeze", "freezer", "rounds"]
    killed_tasks: int
    rounds: int
    left_tasks: int
    unseen_tasks: int
    released_early_tasks: int  # process_mrelease succeeded
    signalled_ns: int  # the first round of signals was out
    empty_ns: int | None  # the subtree was seen empty; None: not before the deadline


def kill_cgroup(target: KillTarget, *, deadline_ns: int, release_early: bool = True) -> KillReport:
    """Kill every process of a cgroup's subtree and return once it is empty or `deadline_ns` has come.

    Source:  cgroup.kill (since v5.14), cgroup.freeze (v5.2), v1 freezer.state; pidfd_open (v5.3).
    Raises:  CgroupGone: the directory is gone or is another cgroup now. ActuationError: it holds this process or init,
             or is another pod's.
    """
    with Kill.begin(target) as kill:
        return kill.finish(deadline_ns=deadline_ns, release_early=release_early)


class Kill:
    """A kill under way: the signals are out. Owns the cgroup's directory and the pidfds until `close`."""

    def __init__(self, target: KillTarget, directory_fd: int) -> None:
        self.target = target
        self.signalled_ns = 0
        self.rounds = 0
        self._directory_fd = directory_fd
        self._pidfds: dict[int, int] = {}  # pid → pidfd
        self._signalled: set[int] = set()
        self._unseen = 0
        self._released = 0
        self._method: Literal["cgroup.kill", "cgroup.freeze", "freezer", "rounds"] = "rounds"
        self._frozen: list[Path] = []  # freezer.state files to be thawed

    @classmethod
    def begin(cls, target: KillTarget) -> Self:
        """Signal everything in the subtree now; what forks meanwhile is `finish`'s.

        Raises: CgroupGone, ActuationError: as `kill_cgroup`; nothing was signalled.
        Cost:   0.2 ms for a container of a few processes.
        """
        directory_fd = open_pod_directory(target.memory_path, target.cgroup_id, target.pod_names)
        kill = cls(target, directory_fd)
        try:
            kill._round()
        except BaseException:
            kill.close()
            raise
        kill.signalled_ns = time.monotonic_ns()
        return kill

    def finish(self, *, deadline_ns: int, release_early: bool = True) -> KillReport:
        """Give memory back early, wait, and signal what was forked meanwhile until nothing is left."""
        empty_ns = None
        if release_early:
            self._release_early()
        self._thaw()
        while True:
            self._wait_exits(min(deadline_ns, time.monotonic_ns() + _ROUND_WAIT_MS * NS_PER_MS))
            pids = self._pids()
            if pids is None or (not pids and not self._unseen):
                empty_ns, pids = time.monotonic_ns(), set()
                break
            if time.monotonic_ns() >= deadline_ns:
                break
            # A task that was signalled and is still listed only needs time; a new one needs a signal.
            if pids - self._signalled or self._pidfds == {}:
                self._round()
                self._thaw()
        return KillReport(
            method=self._method,
            killed_tasks=len(self._signalled - pids),
            rounds=self.rounds,
            left_tasks=len(pids),
            unseen_tasks=self._unseen,
            released_early_tasks=self._released,
            signalled_ns=self.signalled_ns,
            empty_ns=empty_ns,
        )

    def close(self) -> None:
        """Close every descriptor and thaw what is still frozen, which takes one."""
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()
        self._thaw()
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _round(self) -> None:
        # Frozen first where that is possible: a task that is marked freezing has a signal pending, and copy_process()
        # refuses to finish a fork with one, so that what cgroup.procs shows is all there is. Whether the freeze has
        # completed does not matter and is not waited for.
        self.rounds += 1
        pids = self._pids()
        if pids is None:
            return
        if self.target.version == 2:
            self._round_v2(pids)
            return
        self._frozen = freezer_states(self.target.freezer_path)
        if self._frozen and write_state(self._frozen[0], b"FROZEN"):
            self._method = "freezer"
            pids = self._pids() or set()
        self._signal(pids)

    # A v1 task in the refrigerator does not die of SIGKILL before it is thawed, by every level that froze it. It stays
    # there until process_mrelease has its mm: once it runs it drops that, which then only its own exit can free, and
    # with a best-effort pod's 2 cpu.shares against two busy LS threads 1 GiB took 3.7 s that way, 0.1 s this way.
    def _thaw(self) -> None:
        self._frozen = [state for state in self._frozen if not write_state(state, b"THAWED")]

    def _round_v2(self, pids: set[int]) -> None:
        self._keep_pidfds(pids)
        for pid in self._pidfds:
            _hurry(pid)
        if write_state("cgroup.kill", b"1", self._directory_fd):
            self._method = "cgroup.kill"
            self._signalled |= pids
            return
        if write_state("cgroup.freeze", b"1", self._directory_fd):  # before v5.14
            self._method = "cgroup.freeze"
        try:
            self._signal(self._pids() or set())
        finally:
            write_state("cgroup.freeze", b"0", self._directory_fd)

    # Signals tasks of this subtree only. A pid may be reused between reading it and opening it, so membership is read
    # again after the pidfd is held: what is in both readings and behind the pidfd is one of ours.
    def _signal(self, pids: set[int]) -> None:
        todo = sorted(pids)
        for start in range(0, len(todo), _BATCH):
            opened: dict[int, int] = {}
            try:
                for pid in todo[start : start + _BATCH]:
                    if (pidfd := self._pidfds.pop(pid, None) or _pidfd_open(pid)) is not None:
                        opened[pid] = pidfd
                members = self._pids() or set()
                for pid, pidfd in list(opened.items()):
                    if pid not in members:
                        continue
                    _hurry(pid)
                    if _pidfd_kill(pidfd):
                        self._signalled.add(pid)
                        if len(self._pidfds) < _KEPT_PIDFDS:
                            self._pidfds[pid] = opened.pop(pid)
            finally:
                for pidfd in opened.values():
                    os.close(pidfd)

    def _keep_pidfds(self, pids: set[int]) -> None:
        for pid in sorted(pids)[: _KEPT_PIDFDS - len(self._pidfds)]:
            if pid not in self._pidfds and (pidfd := _pidfd_open(pid)) is not None:
                self._pidfds[pid] = pidfd

    # The biggest last, and thawed once its release is under way: then its own exit can no longer take the mm away, and
    # works beside us where it has a processor (2.5 GiB: p50 80 ms, 120 ms when thawed afterwards).
    def _release_early(self) -> None:
        by_size = sorted(self._pidfds.items(), key=lambda item: _resident_pages(item[0]))
        if not by_size:
            return
        for _, pidfd in by_size[:-1]:
            if not self._release(pidfd):
                return
        thaw = threading.Timer(_THAW_AFTER_S, self._thaw)
        try:
            thaw.start()
        except RuntimeError:  # no memory, or no pid, left for a thread: `finish` thaws afterwards
            self._release(by_size[-1][1])
            return
        self._release(by_size[-1][1])
        thaw.join()

    # False: this kernel has no process_mrelease (before v5.15).
    def _release(self, pidfd: int) -> bool:
        if _libc.syscall(SYS_PROCESS_MRELEASE, pidfd, 0) == 0:
            self._released += 1
            return True
        return ctypes.get_errno() != errno.ENOSYS

    def _wait_exits(self, until_ns: int) -> None:
        poll = select.poll()
        for pidfd in self._pidfds.values():
            poll.register(pidfd, select.POLLIN)
        by_fd = {pidfd: pid for pid, pidfd in self._pidfds.items()}
        while by_fd and (rest_ns := until_ns - time.monotonic_ns()) > 0:
            for pidfd, _ in poll.poll(max(1, rest_ns // NS_PER_MS)):
                poll.unregister(pidfd)
                os.close(self._pidfds.pop(by_fd.pop(pidfd)))
        if not self._pidfds:
            time.sleep(0.0005)  # tasks beyond the kept ones: look again, without spinning

    # None: the cgroup is gone, and with it every task.
    def _pids(self) -> set[int] | None:
        pids: set[int] = set()
        try:
            for text in _procs(self._directory_fd):
                pids.update(map(int, text.split()))
        except FileNotFoundError:
            return None
        self._unseen = 1 if 0 in pids else 0
        pids.discard(0)
        if 1 in pids or os.getpid() in pids:
            raise ActuationError(
                f"{self.target.memory_path}: holds {'init' if 1 in pids else 'this agent'}: not killed"
            )
        return pids


def _procs(directory_fd: int) -> Iterator[bytes]:
    try:
        yield _read_at(directory_fd, "cgroup.procs")
        names = [entry.name for entry in os.scandir(directory_fd) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            raise FileNotFoundError from error
        raise
    for name in names:
        try:
            child_fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
        except FileNotFoundError:
            continue  # an emptied child may be removed at any moment
        try:
            with contextlib.suppress(FileNotFoundError):
                yield from _procs(child_fd)
        finally:
            os.close(child_fd)


def _read_at(directory_fd: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        parts = []
        try:
            while part := os.read(fd, _READ_BYTES):
                parts.append(part)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # a threaded v2 cgroup: its domain lists these processes
                raise
        return b"".join(parts)
    finally:
        os.close(fd)


def _pidfd_open(pid: int) -> int | None:
    if pid <= 1 or pid == os.getpid():
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL):
            return None
        raise ActuationError(f"pidfd_open({pid}): {error.strerror}") from error


def _pidfd_kill(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# A victim that was running when its signal came drops its mm within microseconds: process_mrelease finds nothing then
# (ESRCH) and its own exit frees the memory, at its own share of the processor. 2.5 GiB beside a busy task on two CPUs:
# at most 0.2 s at the highest nice level, up to 1.2 s at the default one.
def _hurry(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, -20)


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def hurry_this_thread() -> str | None:
    """Give the calling thread the highest nice level; return why not, or None.

    For the thread that calls `Kill.finish`: process_mrelease frees memory at its caller's share of the processor.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
    except OSError as error:
        return f"setpriority: {error.strerror}: give CAP_SYS_NICE"
    return None
