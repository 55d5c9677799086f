"""What makes the kernel send each kind of event, in a cgroup of the test's own, and the kernel's own count of it."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from koordebpf.events.layout import decode, decode_stall
from koordebpf.events.records import CgroupStall, Record
from koordebpf.kernel.signals import Backend
from koordebpf.units import PAGE_BYTES
from tests.support.loads.storms import Storm, StormResult, can_count
from tests.support.patience import patience
from tests.support.tracefs import NO_TRACEFS

N = 23  # a prime that no buffering or doubling gives by chance
MIB = 1 << 20
MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES


def set_limit(cgroup: Path, limit_bytes: int) -> None:
    v2 = cgroup / "memory.max"
    (v2 if v2.exists() else cgroup / "memory.limit_in_bytes").write_text(str(limit_bytes))


@contextlib.contextmanager
def holder(cgroup: Path, size_bytes: int, oom_score_adj: int = 0) -> Iterator[int]:
    """Run a process in `cgroup` that holds memory; give its pid."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            Path("/proc/self/oom_score_adj").write_text(str(oom_score_adj))
            memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for page in range(0, size_bytes, mmap.PAGESIZE):
                memory[page] = 1
            os.write(ready[1], b"r")
            os.read(go[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    try:
        assert os.read(ready[0], 1) == b"r"
        yield pid
    finally:
        os.write(go[1], b"g")
        os.waitpid(pid, 0)
        for fd in (ready[0], *go):
            os.close(fd)


def start_in(cgroup: Path, work: Callable[[], None]) -> int:
    """Begin `work` in a forked child that joined `cgroup`; return its pid. It ends with 1 where work failed."""
    pid = os.fork()
    if pid == 0:
        try:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def in_cgroup(cgroup: Path, work: Callable[[], None]) -> int:
    """Run `work` in a forked child that joined `cgroup`; return its wait status."""
    return os.waitpid(start_in(cgroup, work), 0)[1]


def records(signals: Backend) -> list[Record]:
    """Return all records that are there: a read returns a bounded number."""
    found: list[Record] = []
    while buffers := signals.read():
        found += map(decode, buffers)
    return found


def stalls_of(signals: Backend) -> dict[int, CgroupStall]:
    return {row.cgroup_id: row for row in (decode_stall(*item) for item in signals.stalls())}


def stall_of(signals: Backend, cgroup: Path) -> CgroupStall | None:
    return stalls_of(signals).get(cgroup.stat().st_ino)


def reclaims(row: CgroupStall | None) -> int:
    return row.global_.count + row.limit.count if row else 0


def storm(containers: Sequence[Path], ms: int) -> dict[int, StormResult]:
    """Let one task reclaim in vain in each container, all at once; return what the kernel counted, by cgroup id."""
    if not can_count():
        pytest.skip(NO_TRACEFS)
    storms = [Storm(container, ms) for container in containers]
    try:
        return {result.cgroup_id: result for result in [each.result(timeout_s=patience(60)) for each in storms]}
    finally:
        for each in storms:
            each.stop()


def stay_on_one_cpu() -> None:
    """Keep the process where it is: each CPU has charged pages ahead, and on another one it would reclaim once more."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Traced:
    """The kernel's own trace of one of its events, in an instance of ours: of the task that starts it, or of all."""

    def __init__(self, instance: Path, event: str) -> None:
        self.instance = instance
        self.enable = instance / "events" / event / "enable"
        self._stats: list[int] = []

    def start(self, *, only_me: bool = True) -> None:
        if only_me:
            (self.instance / "set_event_pid").write_text(str(os.getpid()))
        self._stats = [os.open(path, os.O_RDONLY) for path in self.instance.glob("per_cpu/cpu*/stats")]
        self.enable.write_text("1")

    def seen(self) -> int:
        # `entries` of each CPU is one short line, where reading `trace` would format every event.
        return sum(int(os.pread(fd, 200, 0).split(b"entries: ")[1].split(b"\n")[0]) for fd in self._stats)

    def stop(self) -> None:
        self.enable.write_text("0")
        for fd in self._stats:
            os.close(fd)

    def lines(self) -> list[str]:
        name = self.enable.parent.name
        return [line for line in (self.instance / "trace").read_text().splitlines() if f" {name}: " in line]


class ReclaimSteps:
    """Touches pages of a file in a cgroup that holds less, until the kernel's own trace shows `N` reclaim episodes."""

    def __init__(self, instance: Path) -> None:
        self.traced = Traced(instance, "vmscan/mm_vmscan_memcg_reclaim_end")

    def __call__(self) -> None:
        stay_on_one_cpu()
        with tempfile.TemporaryFile(dir="/var/tmp") as file:
            file.truncate(256 * MIB)
            with mmap.mmap(file.fileno(), 256 * MIB, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
                memory.madvise(mmap.MADV_RANDOM)
                self.traced.start()
                for page in range(256 * MIB // PAGE_BYTES):
                    memory[page * PAGE_BYTES]
                    if self.traced.seen() >= N:
                        break
                self.traced.stop()
