"""CPUs and memory that go and come back while the node is watched. Only in a small machine of the tests' own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.agent.collector import Collector
from koordebpf.agent.scope import open_scope
from koordebpf.agent.watch import NodeWatch
from koordebpf.events.layout import kinds_mask
from koordebpf.events.records import CgroupBirth, ReclaimStall
from koordebpf.kernel.cgroupfs import MemoryHierarchy, cgroup_id
from tests.conftest import OTHER_MACHINE
from tests.host.conftest import MakeSignals
from tests.host.provoke import MACHINE_BYTES, MIB, N, ReclaimSteps, in_cgroup, records, set_limit, stall_of

CPU = Path("/sys/devices/system/cpu/cpu1/online")
MEMORY = Path("/sys/devices/system/memory")
pytestmark = pytest.mark.skipif(MACHINE_BYTES > 4096 * MIB, reason=f"{OTHER_MACHINE}others work on it")


@pytest.fixture
def second_cpu_gone() -> Iterator[Path]:
    """Take CPU 1 away; give the file that brings it back."""
    if not CPU.exists():
        pytest.skip(f"{OTHER_MACHINE}it has no second CPU that can be taken away")
    allowed = os.sched_getaffinity(0)
    CPU.write_text("0")
    yield CPU
    CPU.write_text("1")
    os.sched_setaffinity(0, allowed)


def test_a_cpu_that_comes_back_is_heard(
    memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path, second_cpu_gone: Path
) -> None:
    set_limit(memory_cgroup, 16 * MIB)
    signals = make_signals()
    signals.send_kinds(kinds_mask(["reclaim", "cgroup_mkdir"]))
    second_cpu_gone.write_text("1")
    os.sched_setaffinity(0, {1})
    (memory_cgroup.parent / "born-on-cpu1").mkdir()
    (memory_cgroup.parent / "born-on-cpu1").rmdir()
    steps = ReclaimSteps(trace_instance)
    assert in_cgroup(memory_cgroup, steps) == 0
    traced = steps.traced.lines()
    assert {line.split("[")[1].split("]")[0] for line in traced} == {"001"}
    heard = records(signals)
    assert "born-on-cpu1" in {record.name for record in heard if isinstance(record, CgroupBirth)}
    own = cgroup_id(memory_cgroup)
    assert sum(isinstance(record, ReclaimStall) and record.cgroup_id == own for record in heard) == len(traced) == N
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert (row.limit.count, row.stalled) == (N, 0)


def take_a_block_away() -> Path:
    """Take the last block of memory offline that the kernel can empty; return its `state` file."""
    blocks = sorted(MEMORY.glob("memory[0-9]*"), key=lambda block: int(block.name.removeprefix("memory")))
    if not blocks:
        pytest.skip(f"{OTHER_MACHINE}its kernel has no memory that comes and goes (CONFIG_MEMORY_HOTPLUG)")
    for block in reversed(blocks):
        try:
            (block / "state").write_text("offline")
        except OSError:  # it holds what cannot be moved
            continue
        return block / "state"
    pytest.skip(f"{OTHER_MACHINE}none of its {len(blocks)} blocks of memory can be emptied")


def test_memory_that_goes_and_comes_back_is_the_nodes(hierarchy: MemoryHierarchy) -> None:
    block_bytes = int((MEMORY / "block_size_bytes").read_text(), 16)
    with NodeWatch(open_scope(hierarchy, None), None, 0) as watch:
        collector = Collector(watch.scope, watch.signals, watch.index)
        try:
            before = collector.node().total_bytes
            state = take_a_block_away()
            try:
                without = collector.everything({}, (), None).node
                assert 0 < before - without.total_bytes <= block_bytes
                assert without.used_bytes < without.total_bytes
            finally:
                state.write_text("online")
            assert collector.node().total_bytes == before
        finally:
            collector.close()
