"""The BPF programs on the running kernel: provoke N events in a cgroup of our own and find exactly those.

N is 23, a prime that no buffering or doubling gives by chance.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.events.layout import check_layout, decode, decode_memcgs, decode_stall, decode_totals
from koordebpf.events.records import CgroupBirth, CgroupDeath, CgroupStall, OomKill, ReclaimStall, Record
from koordebpf.kernel.cgroupfs import CgroupMemory, find_memory_hierarchy
from koordebpf.kernel.signals import KernelSignals
from koordebpf.units import PAGE_BYTES

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
    child = memory_cgroup / "container"
    child.mkdir()
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
    inside, outside = memory_cgroup / "node", memory_cgroup / "other"
    inside.mkdir()
    outside.mkdir()
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
    kept = [r for r in records(signals) if isinstance(r, CgroupBirth | CgroupDeath)]
    totals = decode_totals(signals.totals())
    assert totals.ring_lost > 0
    assert totals.ring_sent + totals.ring_lost >= made
    assert len(kept) == totals.ring_sent


def test_one_scan_equals_the_files(memory_cgroup: Path, make_signals: Callable[..., KernelSignals]) -> None:
    signals = make_signals()
    if not signals.can_scan:
        pytest.skip("not this kind of machine: its kernel has no cgroup iterator (since 6.1)")
    child = memory_cgroup / "container"
    child.mkdir()
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        (child / "cgroup.procs").write_text(str(os.getpid()))
        memory = mmap.mmap(-1, 32 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:] = b"x" * (32 * MIB)
        os.write(ready[1], b"r")
        os.read(go[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        rows = signals.scan()
        try:
            samples = {sample.cgroup_id: sample for sample in decode_memcgs(rows, PAGE_BYTES)}
        finally:
            rows.release()
        version = find_memory_hierarchy().version
        with CgroupMemory(child, version) as files:
            stat = files.read()
        sample = samples[child.stat().st_ino]
        assert sample.parent_id == memory_cgroup.stat().st_ino
        assert sample.usage_bytes == stat.usage_bytes
        assert sample.inactive_anon_bytes == stat.inactive_anon_bytes
        assert sample.active_anon_bytes == stat.active_anon_bytes
        assert sample.inactive_file_bytes == stat.inactive_file_bytes
        assert sample.unevictable_bytes == stat.unevictable_bytes
        assert sample.inactive_anon_bytes + sample.active_anon_bytes >= 32 * MIB
        assert signals.scan_missed() == 0
        assert len(samples) == 2
    finally:
        os.write(go[1], b"g")
        os.waitpid(pid, 0)
        for fd in (*ready, *go):
            os.close(fd)


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
