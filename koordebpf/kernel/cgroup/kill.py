"""Stop everything in a cgroup's subtree, and nothing else.

Owns: freezer, cgroup.kill, pidfds, process_mrelease. Split in two, because the signal must leave within a millisecond
and the rest takes as long as the memory is big: `Kill.begin` signals, `Kill.finish` waits, follows forks and gives
memory back early. Refuses: a directory that is not the cgroup that was meant, and a subtree that holds this process or
init.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Literal, Self

import msgspec

from koordebpf.errors import ActuationError, CgroupGone, os_reason
from koordebpf.kernel.cgroup.freezer import thaw_subtree, write_state
from koordebpf.kernel.cgroup.lifted import CpuPlace
from koordebpf.kernel.cgroup.pod_directory import open_pod_directory
from koordebpf.kernel.cgroup.reaping import Reaping
from koordebpf.kernel.cgroup.subtree import pids, read_file
from koordebpf.kernel.io.closing import Closing
from koordebpf.units import NS_PER_MS

MONITOR = re.compile(r"(?:crio|libpod)-conmon-.*")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
CgroupVersion = Literal[1, 2]
_BATCH = 256  # pidfds held at once while signalling: below the default limit of 1,024 open files
_KEPT_PIDFDS = 64  # tasks waited for by pidfd and reaped early; the others are seen through cgroup.procs
_ROUND_WAIT_MS = 20  # a round waits this long for the kept pidfds before it looks for tasks forked meanwhile
_MONITORS_NS = 1_000 * NS_PER_MS  # Why: a monitor on a busy node reports its container's end within some 10 ms
# Why 512: a pod has some dozens of cgroups; a pod with thousands must not keep the thread that starts the kill from
# the other pods. `finish` looks at all of them.
_FIRST_LOOK = 512


# The monitors of a pod's containers: `conmon`, which CRI-O may keep in a cgroup of its own beside each of them.
#
# A monitor is its container's parent. It writes down how that ended, and only then does CRI-O, and through it the
# kubelet, know that it has: where the monitor dies first, the pod is taken to run until its object is deleted.


def killed_beside_monitors(pod_fd: int, most: int) -> bool:
    """Write cgroup.kill of every cgroup in the pod's but those of monitors, where it has at most so many.

    False: there is no monitor, or something else is as no runtime makes it; the pod is to be killed whole.
    Cost:    30 µs, and 20 µs for each cgroup.
    """
    try:
        with os.scandir(pod_fd) as entries:
            names = [entry.name for entry in islice((e for e in entries if e.is_dir(follow_symlinks=False)), most + 1)]
        others = [name for name in names if not MONITOR.fullmatch(name)]
        if len(others) == len(names) or len(names) > most or read_file(pod_fd, "cgroup.procs"):
            return False
        refused = [name for name in others if not _killed(pod_fd, name)]
        return not refused
    except OSError:
        return False


def _killed(pod_fd: int, name: str) -> bool:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=pod_fd)
        try:
            if write_state("cgroup.kill", b"1", fd):
                return True
        finally:
            os.close(fd)
        os.stat(name, dir_fd=pod_fd)
    except FileNotFoundError:
        return True  # an emptied cgroup may be removed at any moment
    return False


class KillTarget(msgspec.Struct, frozen=True):
    """Which cgroup is meant. `cgroup_id` is the st_ino of `memory_path`, its kernfs id.

    `freezer_path` (v1 only) is the same relative directory of the freezer hierarchy, None where there is none.
    `pod_names` are those that the pod's directory may bear, as `pod_directory.bears` reads them; none: it is no pod's.
    `cpu` is where its CPU limits are, None where they are not lifted.
    """

    memory_path: Path
    cgroup_id: int
    version: CgroupVersion
    freezer_path: Path | None = None
    pod_names: tuple[str, ...] = ()
    cpu: CpuPlace | None = None


class KillReport(msgspec.Struct, frozen=True):
    """How a kill ended. Times are CLOCK_MONOTONIC nanoseconds.

    `left_tasks` are the processes still there at the deadline; `unseen_tasks` is 1 where some live in a pid namespace
    that this process cannot see, which only cgroup.kill reaches. `refusals` are those that the kernel did not let this
    process signal, as a security module does: pid and why.
    """

    method: Literal["cgroup.kill", "cgroup.freeze", "freezer", "rounds"]
    killed_tasks: int
    rounds: int
    left_tasks: int
    unseen_tasks: int
    released_early_tasks: int  # process_mrelease succeeded
    signalled_ns: int  # the first round of signals was out
    empty_ns: int | None  # the subtree was seen empty; None: not before the deadline
    refusals: tuple[tuple[int, str], ...] = ()


def kill_cgroup(target: KillTarget, *, deadline_ns: int, release_early: bool = True) -> KillReport:
    """Kill every process of a cgroup's subtree and return once it is empty or `deadline_ns` has come.

    Source:  cgroup.kill (since v5.14), cgroup.freeze (v5.2), v1 freezer.state; pidfd_open (v5.3).
    Raises:  CgroupGone: the directory is gone or is another cgroup now. ActuationError: it holds this process or init,
             or is another pod's.
    """
    with Kill.begin(target) as kill:
        return kill.finish(deadline_ns=deadline_ns, release_early=release_early)


class Kill(Closing):
    """A kill in progress: the signals are sent. Owns the cgroup's directory and the pidfds until `close`."""

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
        self._freezer_fd: int | None = None  # of a v1 cgroup that is frozen, until it is thawed
        self._refusals: dict[int, str] = {}
        self._spared_until_ns: int | None = None  # containers' monitors

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
        """Release memory early (process_mrelease), wait, and signal what was forked meanwhile until nothing is left.

        Where only tasks are left that must not be signalled there is nothing to wait for.
        """
        empty_ns = None
        if release_early:
            self._release_early()
        self._thaw()
        while True:
            self._wait_exits(min(deadline_ns, time.monotonic_ns() + _ROUND_WAIT_MS * NS_PER_MS))
            pids = self._pids()
            if pids is None or (not pids and not self._unseen and not self._is_populated()):
                empty_ns, pids = time.monotonic_ns(), set()
                break
            if time.monotonic_ns() >= deadline_ns or (pids and pids <= self._refusals.keys()):
                break
            # A task that was signalled and is still listed only needs time; a new one needs a signal.
            is_new = bool(pids - self._signalled - self._refusals.keys())
            if is_new or self._pidfds == {} or self._ends_sparing():
                self._round(deadline_ns)
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
            refusals=tuple((pid, why) for pid, why in self._refusals.items() if pid in pids),
        )

    def close(self) -> None:
        """Close every descriptor and thaw what is still frozen, which takes one."""
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()
        self._thaw()
        if self._freezer_fd is not None:
            os.close(self._freezer_fd)
            self._freezer_fd = None
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1

    def _round(self, deadline_ns: int | None = None) -> None:
        # Frozen first where that is possible: a task that is marked freezing has a signal pending, and copy_process()
        # refuses to finish a fork with one, so that what cgroup.procs shows is all there is. Whether the freeze has
        # completed does not matter and is not waited for.
        self.rounds += 1
        pids = self._pids()
        if pids is None:
            return
        if self.target.version == 2:
            self._round_v2(pids, deadline_ns)
            return
        if self._freeze():
            self._method = "freezer"
            pids = self._pids() or set()
        self._signal(pids, deadline_ns)

    def _freeze(self) -> bool:
        if self._freezer_fd is None and self.target.freezer_path is not None:
            with contextlib.suppress(CgroupGone):
                self._freezer_fd = open_pod_directory(self.target.freezer_path, None, self.target.pod_names)
        return self._freezer_fd is not None and write_state("freezer.state", b"FROZEN", self._freezer_fd)

    # A v1 task in the refrigerator does not die of SIGKILL before it is thawed, by every level that froze it. It stays
    # there until process_mrelease has its mm: once it runs it drops that, which then only its own exit can free, and
    # with a best-effort pod's 2 cpu.shares against two busy LS threads 1 GiB took 3.7 s that way, 0.1 s this way.
    def _thaw(self) -> None:
        if (fd := self._freezer_fd) is not None and thaw_subtree(fd):
            self._freezer_fd = None
            os.close(fd)

    def _round_v2(self, pids: set[int], deadline_ns: int | None) -> None:
        self._keep_pidfds(pids)
        members = self._pids() or set()  # once more: a pid may be another one's since it was read first
        for pid, pidfd in self._pidfds.items():
            if pid in members:
                _hurry(pid, pidfd)
        if self._write_cgroup_kill():
            self._method = "cgroup.kill"
            self._signalled |= pids
            return
        if write_state("cgroup.freeze", b"1", self._directory_fd):  # before v5.14
            self._method = "cgroup.freeze"
        try:
            self._signal(self._pids() or set(), deadline_ns)
        finally:
            write_state("cgroup.freeze", b"0", self._directory_fd)

    # In the first second monitors are spared, to report how their containers end; so is whatever is named as one.
    def _write_cgroup_kill(self) -> bool:
        is_sparing = self.rounds == 1 or self._spared_until_ns is not None
        if is_sparing and killed_beside_monitors(self._directory_fd, _FIRST_LOOK):
            self._spared_until_ns = self._spared_until_ns or time.monotonic_ns() + _MONITORS_NS
            return True
        self._spared_until_ns = None
        return write_state("cgroup.kill", b"1", self._directory_fd)

    # True once, when monitors have had their second: the next round kills the whole pod.
    def _ends_sparing(self) -> bool:
        is_over = self._spared_until_ns is not None and time.monotonic_ns() >= self._spared_until_ns
        if is_over:
            self._spared_until_ns = None
        return is_over

    # Signals tasks of this subtree only. A pid may be reused between reading it and opening it, so membership is read
    # again after the pidfd is held: what is in both readings and behind the pidfd is one of ours.
    def _signal(self, pids: set[int], deadline_ns: int | None) -> None:
        todo = sorted(pids)
        for start in range(0, len(todo), _BATCH):
            if deadline_ns is not None and start and time.monotonic_ns() >= deadline_ns:
                return
            opened: dict[int, int] = {}
            try:
                for pid in todo[start : start + _BATCH]:
                    if (pidfd := self._pidfds.pop(pid, None) or _pidfd_open(pid)) is not None:
                        opened[pid] = pidfd
                members = self._pids() or set()
                for pid, pidfd in list(opened.items()):
                    if pid not in members:
                        continue
                    _hurry(pid, pidfd)
                    if self._killed(pid, pidfd):
                        self._signalled.add(pid)
                        if len(self._pidfds) < _KEPT_PIDFDS:
                            self._pidfds[pid] = opened.pop(pid)
            finally:
                for pidfd in opened.values():
                    os.close(pidfd)

    # A security module may refuse one process and not the next: that one's refusal must not save the others.
    def _killed(self, pid: int, pidfd: int) -> bool:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            self._refusals[pid] = os_reason(error)
            return False
        self._refusals.pop(pid, None)
        return True

    def _keep_pidfds(self, pids: set[int]) -> None:
        for pid in sorted(pids)[: _KEPT_PIDFDS - len(self._pidfds)]:
            if pid not in self._pidfds and (pidfd := _pidfd_open(pid)) is not None:
                self._pidfds[pid] = pidfd

    # Thawed once every release has started: then no exit can take a mm away any more, and each works beside us where it
    # has a processor (one process of 2.5 GiB: p50 80 ms, 120 ms when thawed afterwards).
    def _release_early(self) -> None:
        reaping = Reaping(tuple(self._pidfds.items()), self._thaw)
        reaping.run()
        self._released += reaping.released

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

    # How many cgroups are looked into. By cgroup.kill the kernel has looked at all of them.
    @property
    def _most(self) -> int | None:
        return _FIRST_LOOK if self.signalled_ns == 0 or self._method == "cgroup.kill" else None

    # None: the cgroup is gone, and with it every task.
    def _pids(self) -> set[int] | None:
        found = pids(self._directory_fd, self._most)
        if found is None:
            return None
        self._unseen = 1 if 0 in found else 0
        found.discard(0)
        if 1 in found or os.getpid() in found:
            raise ActuationError(
                f"{self.target.memory_path}: holds {'init' if 1 in found else 'this agent'}: not killed"
            )
        return found

    # Whether some may be left in cgroups that are not looked into.
    def _is_populated(self) -> bool:
        if self._most is None:
            return False
        try:
            return b"populated 1" in read_file(self._directory_fd, "cgroup.events")
        except OSError:
            return False


def _pidfd_open(pid: int) -> int | None:
    if pid <= 1 or pid == os.getpid():
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL):
            return None
        raise ActuationError(f"pidfd_open({pid}): {error.strerror}") from error


# A victim that was running when its signal came drops its mm within microseconds: process_mrelease finds nothing then
# (ESRCH) and its own exit frees the memory, at its own share of the processor. 2.5 GiB beside a busy task on two CPUs:
# at most 0.2 s at the highest nice level, up to 1.2 s at the default one.
def _hurry(pid: int, pidfd: int) -> None:
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, 0)  # ESRCH: it was reaped, and its pid may be reused
        os.setpriority(os.PRIO_PROCESS, pid, -20)


def raise_thread_priority() -> str | None:
    """Give the calling thread the highest nice level; return why not, or None.

    For the thread that calls `Kill.finish`: process_mrelease frees memory at its caller's share of the processor.
    """
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
    except OSError as error:
        return f"setpriority: {error.strerror}: give CAP_SYS_NICE"
    return None
