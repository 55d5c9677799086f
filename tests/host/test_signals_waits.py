"""Waits beside reclaim: compaction, throttling, what the kernel itself counts as a stall; and `some` over all."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.events.layout import decode_totals, kinds_mask
from koordebpf.events.records import CgroupStall, CompactionStall, MemoryStall, ReclaimStall, StallSum, ThrottleStall
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE
from koordebpf.kernel.signals import Backend
from koordebpf.units import NS_PER_S, PAGE_BYTES
from tests.conftest import OTHER_MACHINE
from tests.host.conftest import MakeSignals, make_child
from tests.host.provoke import (
    MIB,
    N,
    ReclaimSteps,
    Traced,
    in_cgroup,
    records,
    set_limit,
    stall_of,
    start_in,
    stay_on_one_cpu,
)
from tests.support.tracefs import TRACEFS

COMPACT = Path("/proc/sys/vm/compact_memory")
MEMSTALL = "every memory stall the kernel counts"
LRU_GEN = Path("/sys/kernel/mm/lru_gen/enabled")
NS_PER_US = 1000


def has_memstall(signals: Backend) -> bool:
    return any(source.signal == MEMSTALL and source.works for source in signals.sources)


def waited_ns(row: CgroupStall) -> int:
    sums: tuple[StallSum, ...] = (row.global_, row.limit, row.compaction, row.other_global, row.other_limit)
    return sum(each.total_ns for each in sums)


def test_exactly_23_compactions(memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path) -> None:
    signals = make_signals()
    signals.send_kinds(kinds_mask(["compaction"]))
    traced = Traced(trace_instance, "compaction/mm_compaction_end")

    def compact() -> None:
        traced.start()
        for _ in range(N):  # each is one compaction for each zone that has pages
            COMPACT.write_text("1")
        traced.stop()

    assert in_cgroup(memory_cgroup, compact) == 0
    lines = traced.lines()
    assert lines
    assert len(lines) % N == 0
    own = cgroup_id(memory_cgroup)
    seen = [r for r in records(signals) if isinstance(r, CompactionStall) and r.cgroup_id == own]
    assert len(seen) == len(lines)
    assert all(r.is_global and r.delta_ns > 0 and r.detail <= 8 for r in seen)
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert row.compaction.count == len(lines)
    assert row.compaction.total_ns == sum(r.delta_ns for r in seen)
    assert decode_totals(signals.totals()).compactions >= len(lines)


# Pages that cannot be reclaimed before the disk has them: on cgroup v1 reclaim sleeps for them.
def write_dirty(traced: Traced, at_most: int) -> None:
    stay_on_one_cpu()
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        block = bytes(MIB)
        traced.start()
        for written in range(at_most):
            file.write(block)
            if written % 64 == 63:
                file.seek(0)
            if traced.seen() >= N:
                break
        traced.stop()


def test_exactly_23_throttled_reclaims(memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path) -> None:
    if not (TRACEFS / "events/vmscan/mm_vmscan_throttled").exists():
        pytest.skip(f"{OTHER_MACHINE}its kernel does not trace throttling (since 5.16)")
    set_limit(memory_cgroup, 24 * MIB)
    signals = make_signals()
    signals.send_kinds(kinds_mask(["throttled"]))
    traced = Traced(trace_instance, "vmscan/mm_vmscan_throttled")
    assert in_cgroup(memory_cgroup, lambda: write_dirty(traced, 1024)) == 0
    lines = traced.lines()
    own = cgroup_id(memory_cgroup)
    seen = [r for r in records(signals) if isinstance(r, ThrottleStall) and r.cgroup_id == own]
    assert len(seen) == len(lines)
    if not lines:
        pytest.skip(f"{OTHER_MACHINE}its reclaim of dirty pages does not sleep")
    slept_us = [int(line.split("_delayed=")[1].split()[0]) for line in lines]
    assert [r.delta_ns // NS_PER_US for r in seen] == slept_us
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert row.throttled.count == len(lines)
    # Its time lies within reclaim's, but that it comes in whole jiffies.
    assert row.throttled.total_ns <= row.limit.total_ns + row.throttled.count * 10 * NS_PER_US * 1000


def write_line(path: Path, line: str) -> None:
    # Python's own append mode seeks to the end, which the file refuses.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


@pytest.fixture
def left_outermost(trace_instance: Path) -> Iterator[Traced]:
    """Count the ends of outermost psi_memstall sections by a kprobe of the kernel's tracer."""
    kprobes = TRACEFS / "kprobe_events"
    if not kprobes.exists():
        pytest.skip(f"{OTHER_MACHINE}its kernel has no kprobes")
    # The flag that psi_memstall_enter left: set in an inner section.
    name = f"left_{os.getpid()}"
    write_line(kprobes, f"p:koord/{name} psi_memstall_leave inner=+0($arg1):u64")
    event = f"koord/{name}"
    try:
        (trace_instance / "events" / event / "filter").write_text("inner == 0")
        yield Traced(trace_instance, event)
        (trace_instance / "events" / event / "enable").write_text("0")
    finally:
        write_line(kprobes, f"-:{event}")


@pytest.fixture
def uncached_file() -> Iterator[int]:
    """Give a file that is half again as large as the cgroup may hold, none of it in memory yet."""
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        for _ in range(24):
            file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield file.fileno()


# Reads it in rounds, until it stalled so many times. A page is missed that was active when it went.
def thrash(fd: int, traced: Traced, rounds: int, sections: float = math.inf) -> None:
    soon_again, rest = range(0, 10 * MIB, PAGE_BYTES), range(10 * MIB, 24 * MIB, PAGE_BYTES)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    traced.start()
    for number, at in enumerate([*soon_again, *soon_again, *rest] * rounds):
        os.pread(fd, 1, at)
        if number % 64 == 0 and traced.seen() >= sections:
            break
    traced.stop()


def test_every_stall_that_the_kernel_counts(
    memory_cgroup: Path, make_signals: MakeSignals, left_outermost: Traced, uncached_file: int
) -> None:
    if not NODE_MEMORY_PRESSURE.exists():
        pytest.skip(f"{OTHER_MACHINE}without PSI the kernel marks no section as inner or outer")
    set_limit(memory_cgroup, 16 * MIB)
    signals = make_signals()
    assert has_memstall(signals), signals.sources
    signals.send_kinds(kinds_mask(["memstall", "reclaim"]))
    signals.send_only([cgroup_id(memory_cgroup)])
    assert in_cgroup(memory_cgroup, lambda: thrash(uncached_file, left_outermost, 20, 10 * N)) == 0
    own = cgroup_id(memory_cgroup)
    mine = [r for r in records(signals) if r.cgroup_id == own]
    seen = [r for r in mine if isinstance(r, MemoryStall)]
    traced = len(left_outermost.lines())
    assert traced >= 10 * N
    # Ending the trace and itself the task, which is at its limit, may stall some more times.
    assert traced <= len(seen) <= traced + N
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert row.other_global.count + row.other_limit.count == sum(r.detail == 0 for r in seen)
    # Each reclaim at the limit has a section of its own around it.
    reclaims = [r for r in mine if isinstance(r, ReclaimStall)]
    assert len(reclaims) == sum(r.detail & 1 for r in seen) == row.limit.count
    assert sum(r.delta_ns for r in seen) == waited_ns(row) == row.some_ns


def test_refaults_are_stalls_without_reclaim(
    memory_cgroup: Path, make_signals: MakeSignals, left_outermost: Traced, uncached_file: int
) -> None:
    if not NODE_MEMORY_PRESSURE.exists():
        pytest.skip(f"{OTHER_MACHINE}without PSI the kernel marks no section as inner or outer")
    if LRU_GEN.exists() and int(LRU_GEN.read_text(), 16):
        pytest.skip(f"{OTHER_MACHINE}its LRU has generations, which take no page that comes back so for a missed one")
    set_limit(memory_cgroup, 16 * MIB)
    signals = make_signals()
    assert in_cgroup(memory_cgroup, lambda: thrash(uncached_file, left_outermost, 6)) == 0
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    others = row.other_global.count + row.other_limit.count
    assert others >= 10 * N
    traced = len(left_outermost.lines())
    assert traced <= others + row.limit.count + row.global_.count <= traced + N
    assert row.some_ns == waited_ns(row)
    assert row.stalled == 0


# Grows past memory.high, whose sleeps get longer the further past it is.
def grow(traced: Traced, start: int, most: int) -> None:
    with mmap.mmap(-1, most, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, most, PAGE_BYTES):
            memory[at] = 1
            if at == start:
                traced.start()
            if at > start and at % (16 * PAGE_BYTES) == 0 and traced.seen() >= N:
                break
        traced.stop()


def test_sleeps_at_memory_high_are_stalls_at_a_limit(
    memory_cgroup: Path, make_signals: MakeSignals, left_outermost: Traced
) -> None:
    child = make_child(memory_cgroup, "container")
    if not (child / "memory.high").exists():
        pytest.skip(f"{OTHER_MACHINE}memory.high is of cgroup v2")
    if not NODE_MEMORY_PRESSURE.exists():
        pytest.skip(f"{OTHER_MACHINE}without PSI the kernel marks no section as inner or outer")
    (child / "memory.high").write_text(str(16 * MIB))
    signals = make_signals()
    # Half of it before the trace: until there nothing stalls.
    assert in_cgroup(child, lambda: grow(left_outermost, 8 * MIB, 20 * MIB)) == 0
    row = stall_of(signals, child)
    assert row is not None
    assert row.other_limit.count > 0
    assert row.other_global.count == row.global_.count == 0
    traced = len(left_outermost.lines())
    assert traced <= row.other_limit.count + row.limit.count <= traced + N
    assert row.some_ns == waited_ns(row)


def test_what_one_task_waits_is_its_some(memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path) -> None:
    child = make_child(memory_cgroup, "container")
    set_limit(child, 16 * MIB)
    signals = make_signals()
    assert in_cgroup(child, ReclaimSteps(trace_instance)) == 0
    own, parent = (stall_of(signals, each) for each in (child, memory_cgroup))
    assert own is not None
    assert parent is not None
    assert own.stalled == parent.stalled == 0
    # One thread, so nothing overlaps; the union is the sum, and the parent's is the child's.
    assert own.some_ns == waited_ns(own) > 0
    assert parent.some_ns == own.some_ns
    assert waited_ns(parent) == 0
    assert decode_totals(signals.totals()).node_some_ns >= own.some_ns


# Reclaims at the limit for a while: half of what is read is always gone again.
def walk(seconds: float) -> None:
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.truncate(64 * MIB)
        with mmap.mmap(file.fileno(), 64 * MIB, prot=mmap.PROT_READ) as memory:
            memory.madvise(mmap.MADV_RANDOM)
            end_ns = time.monotonic_ns() + int(seconds * NS_PER_S)
            while time.monotonic_ns() < end_ns:
                for page in range(0, 64 * MIB, PAGE_BYTES):
                    memory[page]


@pytest.mark.slow
def test_some_of_a_pod_is_the_union_of_its_containers(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    children = [make_child(memory_cgroup, name) for name in ("one", "two", "three")]
    for child in children:
        set_limit(child, 8 * MIB)
    signals = make_signals()
    pids = [start_in(child, lambda: walk(1.5)) for child in children]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
    rows = [stall_of(signals, child) for child in children]
    parent = stall_of(signals, memory_cgroup)
    assert parent is not None
    each_ns = [row.some_ns for row in rows if row is not None]
    assert len(each_ns) == len(children)
    assert [row.some_ns for row in rows if row] == [waited_ns(row) for row in rows if row]
    # Two CPUs that change it within nanoseconds of each other may count one span twice.
    slack_ns = sum(each_ns) // 100
    assert max(each_ns) - slack_ns <= parent.some_ns <= sum(each_ns) + slack_ns
    assert parent.some_ns <= decode_totals(signals.totals()).node_some_ns + slack_ns
    assert parent.stalled == 0
    assert waited_ns(parent) == 0
