"""Waits for pages that come back from swap: the kernel counts them as stalls, and no task reclaims in them."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from koordebpf.units import PAGE_BYTES
from tests.conftest import OTHER_MACHINE
from tests.host import test_signals_waits as waits
from tests.host.conftest import MakeSignals
from tests.host.provoke import MIB, N, Traced, in_cgroup, set_limit, stall_of

ROUNDS = 20  # at most
left_outermost = waits.left_outermost  # the fixture


# Writes more than the cgroup may hold, again and again. A stall is the wait for a page that was active when it went.
def go_round(traced: Traced) -> None:
    with mmap.mmap(-1, 24 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        traced.start()
        for number, at in enumerate([*range(0, 24 * MIB, PAGE_BYTES)] * ROUNDS):
            memory[at] = number % 251
            if number % 64 == 0 and traced.seen() >= 30 * N:
                break
        traced.stop()


def swapped_in() -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("pswpin "))


def test_they_are_stalls_without_reclaim(
    memory_cgroup: Path, make_signals: MakeSignals, left_outermost: Traced
) -> None:
    if len(Path("/proc/swaps").read_text().splitlines()) < 2:
        pytest.skip(f"{OTHER_MACHINE}it has no swap")
    set_limit(memory_cgroup, 16 * MIB)
    signals = make_signals()
    before = swapped_in()
    assert in_cgroup(memory_cgroup, lambda: go_round(left_outermost)) == 0
    pages = swapped_in() - before
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    others = row.other_global.count + row.other_limit.count
    traced = len(left_outermost.lines())
    # One for each page; not for one that had not been active. Its code may have to be read again, too.
    assert N <= others <= pages + N
    assert traced <= others + row.limit.count + row.global_.count <= traced + N
    assert row.some_ns == waits.waited_ns(row)
    assert row.stalled == 0
