"""The BPF programs on the running kernel: provoke N events in a cgroup of our own and find exactly those.

N is 23, a prime that no buffering or doubling gives by chance.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.events.layout import check_layout, decode, decode_memcgs, decode_stall, decode_totals
from koordebpf.events.records import CgroupBirth, CgroupDeath, CgroupStall, MemcgSample, OomKill, ReclaimStall, Record
from koordebpf.kernel.cgroupfs import CgroupMemory, CgroupMemoryStat, find_memory_hierarchy
from koordebpf.kernel.signals import KernelSignals
from koordebpf.units import NS_PER_S, PAGE_BYTES
from tests.host.conftest import make_child

N = 23
MIB = 1 << 20
TRACEFS = Path("/sys/kernel/tracing")


@pytest.fixture
def make_signals(memory_cgroup: Path) -> Iterator[Callable[..., KernelSignals]]:
    """Return a function that loads and attaches everything, the scan rooted at the test's cgroup."""
    opened: list[KernelSignals] = []
    fd = os.open(memory_cgroup, os.O_RDONLY | os.O_DIRECTORY)

    def make(node_cgroup_id: int | None = None, min_stall_ns: int = 0) -> KernelSignals:
        opened.append(
            KernelSignals(
                hierarchy_id=find_memory_hierarchy().hierarchy_id,
                scan_root_fd=fd,
                node_cgroup_id=node_cgroup_id,
                min_stall_ns=min_stall_ns,
                check_layout=check_layout,
            )
        )
        return opened[-1]

    yield make
    for signals in opened:
        signals.close()
    os.close(fd)


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


def in_cgroup(cgroup: Path, work: Callable[[], None]) -> int:
    """Run `work` in a forked child that joined `cgroup`; return its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            work()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


def records(signals: KernelSignals) -> list[Record]:
    assert signals.ring is not None
    return [decode(buf) for buf in signals.ring.read()]


def stall_of(signals: KernelSignals, cgroup: Path) -> CgroupStall | None:
    rows = {stall.cgroup_id: stall for stall in (decode_stall(*item) for item in signals.stalls())}
    return rows.get(cgroup.stat().st_ino)


class ReclaimSteps:
    """Touches pages of a file in a cgroup that holds less, until the kernel's own trace shows `N` reclaim episodes."""

    def __init__(self, instance: Path) -> None:
        self.instance = instance
        self.events = instance / "events/vmscan/mm_vmscan_memcg_reclaim_end"

    def __call__(self) -> None:
        with tempfile.TemporaryFile(dir="/var/tmp") as file:
            file.truncate(256 * MIB)
            with mmap.mmap(file.fileno(), 256 * MIB, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
                memory.madvise(mmap.MADV_RANDOM)
                (self.instance / "set_event_pid").write_text(str(os.getpid()))
                (self.events / "enable").write_text("1")
                for page in range(256 * MIB // PAGE_BYTES):
                    memory[page * PAGE_BYTES]
                    if self.seen() >= N:
                        break
                (self.events / "enable").write_text("0")

    def seen(self) -> int:
        # `entries` of each CPU is one short line, where reading `trace` would format every event.
        total = 0
        for stats in self.instance.glob("per_cpu/cpu*/stats"):
            total += int(stats.read_text().split("entries: ")[1].split("\n")[0])
        return total


@pytest.fixture
def trace_instance() -> Iterator[Path]:
    if not (TRACEFS / "instances").exists():
        os.system(f"mount -t tracefs nodev {TRACEFS} 2>/dev/null")
    if not (TRACEFS / "instances").exists():
        pytest.skip("tracefs cannot be mounted here: there is nothing to count the kernel's episodes with")
    instance = TRACEFS / "instances" / f"koordebpf-test-{os.getpid()}"
    instance.mkdir()
    yield instance
    instance.rmdir()


def test_exactly_23_memcg_reclaim_episodes(
    memory_cgroup: Path, make_signals: Callable[..., KernelSignals], trace_instance: Path
) -> None:
    set_limit(memory_cgroup, 16 * MIB)
    steps = ReclaimSteps(trace_instance)

    def work() -> None:
        steps()

    # The worker joins and maps before the programs attach to the first episode that counts.
    signals = make_signals()
    before = decode_totals(signals.totals()).episodes
    status = in_cgroup(memory_cgroup, work)
    assert status == 0
    traced = [
        line for line in (trace_instance / "trace").read_text().splitlines() if "mm_vmscan_memcg_reclaim_end" in line
    ]
    assert len(traced) == N

    own = memory_cgroup.stat().st_ino
    stalls = [r for r in records(signals) if isinstance(r, ReclaimStall) and r.cgroup_id == own]
    assert len(stalls) == N
    assert all(r.limit_id == own and not r.is_global for r in stalls)
    assert all(r.delta_ns > 0 and r.nr_reclaimed >= 0 for r in stalls)
    traced_pages = [int(line.split("nr_reclaimed=")[1]) for line in traced]
    assert [r.nr_reclaimed for r in stalls] == traced_pages

    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert (row.limit.count, row.global_.count) == (N, 0)
    assert row.limit.total_ns == sum(r.delta_ns for r in stalls)
    assert row.limit.max_ns == max(r.delta_ns for r in stalls)
    assert sum(row.limit.hist) == N
    assert decode_totals(signals.totals()).episodes - before >= N


@pytest.mark.parametrize("is_node", [False, True], ids=["a pod's limit", "the node cgroup's limit"])
def test_exactly_23_oom_kills(memory_cgroup: Path, make_signals: Callable[..., KernelSignals], is_node: bool) -> None:
    child = make_child(memory_cgroup, "container")
    set_limit(memory_cgroup, 16 * MIB)
    own = memory_cgroup.stat().st_ino
    signals = make_signals(node_cgroup_id=own if is_node else None)
    pids = set()
    for _ in range(N):
        pid = os.fork()
        if pid == 0:
            (child / "cgroup.procs").write_text(str(os.getpid()))
            bytearray(64 * MIB)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
        pids.add(pid)

    kills = [r for r in records(signals) if isinstance(r, OomKill)]
    assert {r.tgid for r in kills} == pids
    assert len(kills) == N
    assert all(r.cgroup_id == child.stat().st_ino and r.limit_id == own and r.is_global is is_node for r in kills)
    stalls = stall_of(signals, child)
    assert stalls is not None
    assert (stalls.global_ if is_node else stalls.limit).count > 0
    assert (stalls.limit if is_node else stalls.global_).count == 0


def test_the_victim_of_another_tasks_allocation_is_known(
    memory_cgroup: Path, make_signals: Callable[..., KernelSignals]
) -> None:
    fat, greedy = (make_child(memory_cgroup, name) for name in ("fat", "greedy"))
    set_limit(memory_cgroup, 48 * MIB)
    signals = make_signals(node_cgroup_id=memory_cgroup.stat().st_ino)
    with holder(fat, 32 * MIB, oom_score_adj=1000) as pid:
        assert os.waitstatus_to_exitcode(in_cgroup(greedy, lambda: bytearray(32 * MIB))) == 0
    kills = [r for r in records(signals) if isinstance(r, OomKill)]
    assert [(r.tgid, r.cgroup_id, r.is_global) for r in kills] == [(pid, fat.stat().st_ino, True)]
    assert kills[0].total_vm_pages > 32 * MIB // PAGE_BYTES


def test_reclaim_that_was_asked_for_is_nobodys_stall(
    memory_cgroup: Path, make_signals: Callable[..., KernelSignals]
) -> None:
    reclaim = make_child(memory_cgroup, "asked") / "memory.reclaim"
    if not reclaim.exists():
        pytest.skip("not this kind of machine: memory.reclaim is of cgroup v2 (since 5.19)")
    writer = make_child(memory_cgroup, "writer")
    set_limit(writer, 256 * MIB)
    signals = make_signals()
    before = decode_totals(signals.totals())
    with holder(reclaim.parent, 32 * MIB):
        # Without swap there is nothing to give back, which the write says after it tried.
        def write() -> None:
            with contextlib.suppress(OSError):
                reclaim.write_text(str(16 * MIB))

        in_cgroup(writer, write)
    assert stall_of(signals, writer) is None
    assert decode_totals(signals.totals()).ignored > before.ignored
    assert not [r for r in records(signals) if isinstance(r, ReclaimStall) and r.cgroup_id == writer.stat().st_ino]


@pytest.mark.parametrize("is_node", [False, True], ids=["a pod's limit", "the node cgroup's limit"])
def test_throttling_at_memory_high_is_a_limits_stall(
    memory_cgroup: Path, make_signals: Callable[..., KernelSignals], is_node: bool
) -> None:
    child = make_child(memory_cgroup, "container")
    if not (child / "memory.high").exists():
        pytest.skip("not this kind of machine: memory.high is of cgroup v2")
    (memory_cgroup / "memory.high").write_text(str(8 * MIB))
    own = memory_cgroup.stat().st_ino
    signals = make_signals(node_cgroup_id=own if is_node else None)

    def read_a_file() -> None:
        with tempfile.TemporaryFile(dir="/var/tmp") as file:
            file.truncate(32 * MIB)
            while file.read(MIB):
                pass

    assert in_cgroup(child, read_a_file) == 0
    stalls = [r for r in records(signals) if isinstance(r, ReclaimStall) and r.cgroup_id == child.stat().st_ino]
    assert stalls
    assert all(r.limit_id == own and r.is_global is is_node for r in stalls)


def test_exactly_23_births_and_deaths(memory_cgroup: Path, make_signals: Callable[..., KernelSignals]) -> None:
    signals = make_signals()
    ids = []
    for i in range(N):
        (memory_cgroup / f"pod{i}").mkdir()
        ids.append((memory_cgroup / f"pod{i}").stat().st_ino)
    for i in range(N):
        (memory_cgroup / f"pod{i}").rmdir()
    own = memory_cgroup.stat().st_ino
    seen = [r for r in records(signals) if isinstance(r, CgroupBirth | CgroupDeath) and r.parent_id == own]
    births = [r for r in seen if isinstance(r, CgroupBirth)]
    deaths = [r for r in seen if isinstance(r, CgroupDeath)]
    assert [(r.cgroup_id, r.name) for r in births] == [(ids[i], f"pod{i}") for i in range(N)]
    assert [(r.cgroup_id, r.name) for r in deaths] == [(ids[i], f"pod{i}") for i in range(N)]


def test_a_long_name_is_marked_as_cut(memory_cgroup: Path, make_signals: Callable[..., KernelSignals]) -> None:
    signals = make_signals()
    name = "n" * 200
    (memory_cgroup / name).mkdir()
    (memory_cgroup / name).rmdir()
    birth = next(r for r in records(signals) if isinstance(r, CgroupBirth) and r.name.startswith("nnn"))
    assert birth.name_cut
    assert name.startswith(birth.name)


def test_short_episodes_are_counted_and_not_sent(
    memory_cgroup: Path, make_signals: Callable[..., KernelSignals], trace_instance: Path
) -> None:
    set_limit(memory_cgroup, 16 * MIB)
    signals = make_signals(min_stall_ns=3_600_000_000_000)
    assert in_cgroup(memory_cgroup, ReclaimSteps(trace_instance)) == 0
    assert not [r for r in records(signals) if isinstance(r, ReclaimStall)]
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert row.limit.count == N


def test_episodes_outside_the_node_cgroup_are_ignored(
    memory_cgroup: Path, make_signals: Callable[..., KernelSignals], trace_instance: Path
) -> None:
    inside, outside = (make_child(memory_cgroup, name) for name in ("node", "other"))
    set_limit(outside, 16 * MIB)
    signals = make_signals(node_cgroup_id=inside.stat().st_ino)
    assert in_cgroup(outside, ReclaimSteps(trace_instance)) == 0
    assert stall_of(signals, outside) is None
    assert decode_totals(signals.totals()).ignored >= N


def test_a_full_ring_is_counted(memory_cgroup: Path, make_signals: Callable[..., KernelSignals]) -> None:
    signals = make_signals()
    made = 3000  # × 176 bytes and more: twice the ring's 256 KiB
    child = memory_cgroup / "pod"
    for _ in range(made // 2):
        child.mkdir()
        child.rmdir()
    before = decode_totals(signals.totals())
    kept = records(signals)
    after = decode_totals(signals.totals())
    assert before.ring_lost > 0
    assert before.ring_sent + before.ring_lost >= made
    assert before.ring_sent <= len(kept) <= after.ring_sent  # what else happens on the machine is sent too


def scan(signals: KernelSignals) -> dict[int, MemcgSample]:
    rows = signals.scan()
    try:
        return {sample.cgroup_id: sample for sample in decode_memcgs(rows, PAGE_BYTES)}
    finally:
        rows.release()


def same_memory(sample: MemcgSample, stat: CgroupMemoryStat) -> bool:
    fields = ("usage", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
    return all(getattr(sample, f"{field}_bytes") == getattr(stat, f"{field}_bytes") for field in fields)


def test_one_scan_equals_the_files(memory_cgroup: Path, make_signals: Callable[..., KernelSignals]) -> None:
    signals = make_signals()
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip("not this kind of machine: its kernel has no cgroup iterator (since 6.1)")
    assert signals.can_scan, signals.sources
    child = make_child(memory_cgroup, "container")
    own = child.stat().st_ino
    deadline_ns = time.monotonic_ns() + 10 * NS_PER_S
    with holder(child, 32 * MIB), CgroupMemory(child, find_memory_hierarchy().version) as files:
        while True:
            samples, stat = scan(signals), files.read()
            # memory.stat is behind by some pages of each CPU until the kernel adds them up, each 2 s.
            if same_memory(samples[own], stat) or time.monotonic_ns() > deadline_ns:
                break
            time.sleep(0.1)
    sample = samples[own]
    assert same_memory(sample, stat), (sample, stat)
    assert sample.parent_id == memory_cgroup.stat().st_ino
    # The last few pages of each CPU wait in a batch before they reach the LRU lists.
    assert sample.inactive_anon_bytes + sample.active_anon_bytes >= 31 * MIB
    assert signals.scan_missed() == 0
    assert len(samples) == 2


def bpf_fds() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # the listing's own fd
            continue
        if target.startswith("anon_inode:bpf"):
            found.append(target)
    return found


def test_nothing_stays_attached(make_signals: Callable[..., KernelSignals]) -> None:
    before = bpf_fds()
    signals = make_signals()
    assert len(bpf_fds()) > len(before)
    signals.close()
    assert bpf_fds() == before
