"""One pass over all memory cgroups, beside the files of the same cgroups."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.events.layout import decode_memcgs
from koordebpf.events.records import MemcgSample
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, CgroupMemoryStat, cgroup_id, find_memory_hierarchy
from koordebpf.kernel.signals import Backend
from koordebpf.units import NS_PER_S, PAGE_BYTES, PAGE_SHIFT
from tests.conftest import OTHER_MACHINE
from tests.host.conftest import MakeSignals, make_child
from tests.host.provoke import MIB, N, holder, in_cgroup, set_limit, start_in
from tests.support.patience import patience

_PAGE_SHIFT_AT = 48  # in koord_settings
LISTS = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")


@pytest.fixture
def signals(make_signals: MakeSignals) -> KernelSignals:
    """Give programs that scan below the test's cgroup."""
    made = make_signals(measures=True)
    if not isinstance(made, KernelSignals):
        pytest.skip(f"{OTHER_MACHINE}bcc builds no cgroup iterator")
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip(f"{OTHER_MACHINE}its kernel has no cgroup iterator (since 6.1)")
    assert made.can_scan, made.sources
    return made


def scan(signals: Backend) -> dict[int, MemcgSample]:
    with signals.scan() as rows:
        return {sample.cgroup_id: sample for sample in decode_memcgs(rows, PAGE_BYTES)}


def tries(seconds: float) -> Iterator[None]:
    """Come back until the time is over: memory.stat is behind by some pages of each CPU until they are added up."""
    deadline_ns = time.monotonic_ns() + int(patience(seconds) * NS_PER_S)
    while time.monotonic_ns() < deadline_ns:
        yield
        time.sleep(0.1)


def same_memory(sample: MemcgSample, stat: CgroupMemoryStat) -> bool:
    fields = ("usage", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
    return all(getattr(sample, f"{field}_bytes") == getattr(stat, f"{field}_bytes") for field in fields)


def test_one_scan_equals_the_files(memory_cgroup: Path, signals: KernelSignals) -> None:
    child = make_child(memory_cgroup, "container")
    own = cgroup_id(child)
    with holder(child, 32 * MIB), CgroupMemory(child, find_memory_hierarchy().version) as files:
        for _ in tries(10):
            samples, stat = scan(signals), files.read()
            if same_memory(samples[own], stat):
                break
    sample = samples[own]
    assert same_memory(sample, stat), (sample, stat)
    assert sample.parent_id == cgroup_id(memory_cgroup)
    # The last few pages of each CPU wait in a batch before they reach the LRU lists.
    assert sample.inactive_anon_bytes + sample.active_anon_bytes >= 31 * MIB
    assert signals.scan_missed() == 0
    assert len(samples) == 2


def swap_bytes(cgroup: Path) -> int | None:
    """Return what a cgroup has in swap, by its files; None: they do not tell."""
    if (cgroup / "memory.swap.current").exists():
        return int((cgroup / "memory.swap.current").read_text())
    both = cgroup / "memory.memsw.usage_in_bytes"
    if not both.exists():
        return None
    return int(both.read_text()) - int((cgroup / "memory.usage_in_bytes").read_text())


def test_swap_equals_the_files(memory_cgroup: Path, signals: KernelSignals) -> None:
    if len(Path("/proc/swaps").read_text().splitlines()) < 2:
        pytest.skip(f"{OTHER_MACHINE}it has no swap")
    set_limit(memory_cgroup, 16 * MIB)
    own = cgroup_id(memory_cgroup)
    with holder(memory_cgroup, 32 * MIB):
        for _ in tries(10):
            scanned, by_files = scan(signals)[own].swap_bytes, swap_bytes(memory_cgroup)
            if scanned == by_files:
                break
    assert scanned == by_files
    assert scanned >= 8 * MIB


def events_of(cgroup: Path) -> dict[str, int]:
    """Return what a cgroup's files tell of its events; cgroup v1 counts only the kills in the open."""
    name = "memory.events" if (cgroup / "memory.events").exists() else "memory.oom_control"
    rows = dict(line.split() for line in (cgroup / name).read_text().splitlines())
    return {key: int(rows[key]) for key in ("high", "max", "oom", "oom_kill") if key in rows}


def test_events_equal_the_files(memory_cgroup: Path, signals: KernelSignals) -> None:
    child = make_child(memory_cgroup, "container")
    set_limit(child, 8 * MIB)
    for _ in range(N):
        in_cgroup(child, lambda: bytearray(32 * MIB))
    events = events_of(child)
    sample = scan(signals)[cgroup_id(child)]
    assert events["oom_kill"] == N
    assert {key: getattr(sample, f"{key}_events") for key in events} == events
    assert sample.oom_events >= N
    assert sample.max_events > 0
    assert sample.max_bytes == 8 * MIB


def numa_bytes(cgroup: Path) -> int:
    """Return what is on a cgroup's LRU lists of all NUMA nodes, as memory.numa_stat tells each of them."""
    is_v1 = find_memory_hierarchy().version == 1
    found = 0
    for line in (cgroup / "memory.numa_stat").read_text().splitlines():
        name, *values = line.replace("=", " ", 1).split() if is_v1 else line.split()
        if name in (("file", "anon", "unevictable") if is_v1 else LISTS):
            found += sum(int(each.partition("=")[2]) for each in values if each.startswith("N"))
    return found * PAGE_BYTES if is_v1 else found


def lru_bytes(sample: MemcgSample) -> int:
    return sum(int(getattr(sample, f"{each}_bytes")) for each in LISTS)


def test_lists_are_those_of_all_numa_nodes(memory_cgroup: Path, signals: KernelSignals) -> None:
    child = make_child(memory_cgroup, "container")
    own = cgroup_id(child)
    with holder(child, 32 * MIB):
        for _ in tries(10):
            by_files, scanned = numa_bytes(child), lru_bytes(scan(signals)[own])
            if scanned == by_files:
                break
    assert scanned == by_files >= 31 * MIB


def mapped_bytes() -> int:
    """Return how much of maps this process has in its memory."""
    sizes = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "bpf-map" in line
    ]
    return sum(int(end, 16) - int(start, 16) for start, end in sizes)


@pytest.fixture
def mapped_before() -> int:
    """Return what is mapped of others before the test's own programs are there."""
    return mapped_bytes()


def test_as_much_is_mapped_as_there_are_cgroups(
    mapped_before: int, memory_cgroup: Path, signals: KernelSignals
) -> None:
    few = scan(signals)
    before = mapped_bytes()
    assert before - mapped_before < MIB  # the ring is half of it
    with signals.scan() as held:
        made = [make_child(memory_cgroup, f"pod-{number}") for number in range(300)]
        everything = {cgroup_id(path) for path in [memory_cgroup, *made]}
        assert scan(signals).keys() == everything
        # Rows of before stay readable.
        assert {sample.cgroup_id for sample in decode_memcgs(held, PAGE_BYTES)} == few.keys()
    assert before < mapped_bytes() < before + MIB
    assert signals.scan_missed() == 0


def test_whose_slab_is_looked_at_is_said_in_bytes(memory_cgroup: Path, signals: KernelSignals) -> None:
    child = make_child(memory_cgroup, "container")
    own, maps = cgroup_id(child), signals._maps
    assert maps is not None
    ready, go = os.pipe(), os.pipe()

    def holds_kernel_memory() -> None:
        for _ in range(16):
            reads, writes = os.pipe()
            fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, MIB)
            os.write(writes, bytes(MIB))
            assert reads
        os.write(ready[1], b"r")
        os.read(go[0], 1)

    pid = start_in(child, holds_kernel_memory)
    assert os.read(ready[0], 1) == b"r"
    try:
        # 8 MiB are so many pages more, of pages that are a quarter as large.
        for shift, is_known in ((PAGE_SHIFT, True), (PAGE_SHIFT - 2, False)):
            maps.settings.write(_PAGE_SHIFT_AT, shift.to_bytes(4, "little"))
            assert (scan(signals)[own].slab_reclaimable_bytes is not None) == is_known
    finally:
        os.write(go[1], b"g")
        os.waitpid(pid, 0)
        for fd in (*ready, *go):
            os.close(fd)
