"""CPUs and memory that go and come back while the node is watched. Only in a small machine of the tests' own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.events.layout import check_layout, decode_totals, kinds_mask
from koordebpf.events.records import CgroupMkdir, ReclaimStall, TaskMigration
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy, cgroup_id
from koordebpf.kernel.signals import SignalRequest
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.conftest import MakeSignals
from tests.host.provoke import MACHINE_BYTES, MIB, N, ReclaimSteps, in_cgroup, records, set_limit, stall_of

CPU = Path("/sys/devices/system/cpu/cpu1/online")
MEMORY = Path("/sys/devices/system/memory")
pytestmark = pytest.mark.skipif(MACHINE_BYTES > 4096 * MIB, reason=f"{OTHER_MACHINE}others work on it")


@pytest.fixture
def second_cpu() -> Iterator[Path]:
    """Give the file that takes CPU 1 away and brings it back; afterwards it is there."""
    if not CPU.exists():
        pytest.skip(f"{OTHER_MACHINE}it has no second CPU that can be taken away")
    allowed = os.sched_getaffinity(0)
    yield CPU
    CPU.write_text("1")
    os.sched_setaffinity(0, allowed)


@pytest.fixture
def second_cpu_gone(second_cpu: Path) -> Path:
    """Take CPU 1 away; give the file that brings it back."""
    second_cpu.write_text("0")
    return second_cpu


@pytest.fixture
def cpusets(tmp_path: Path) -> Iterator[MemoryHierarchy]:
    """Give the cpuset controller as a hierarchy of cgroup v1, as far as mkdir and moves in it are concerned."""
    mount_point = tmp_path / "cpuset"
    mount_point.mkdir()
    subprocess.run(["mount", "-t", "cgroup", "-o", "cpuset", "cpuset", mount_point], check=True)
    (row,) = (line.split() for line in Path("/proc/cgroups").read_text().splitlines() if line.startswith("cpuset\t"))
    yield MemoryHierarchy(1, mount_point, int(row[1]))
    for path in filter(Path.is_dir, mount_point.iterdir()):
        path.rmdir()
    subprocess.run(["umount", mount_point], check=True)


@pytest.fixture
def sleepers() -> Iterator[set[int]]:
    """Give the pids of 23 processes of one task each."""
    processes = [subprocess.Popen(["sleep", "infinity"]) for _ in range(N)]
    yield {process.pid for process in processes}
    for process in processes:
        process.kill()
        process.wait()


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
    assert "born-on-cpu1" in {record.name for record in heard if isinstance(record, CgroupMkdir)}
    own = cgroup_id(memory_cgroup)
    assert sum(isinstance(record, ReclaimStall) and record.cgroup_id == own for record in heard) == len(traced) == N
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert (row.limit.count, row.stalled) == (N, 0)


def test_exactly_23_tasks_that_the_kernel_moves_out_of_a_set_of_cpus(
    cpusets: MemoryHierarchy, second_cpu: Path, sleepers: set[int]
) -> None:
    top = cpusets.mount_point
    emptied = top / "emptied"
    emptied.mkdir()
    (emptied / "cpuset.cpus").write_text("1")
    (emptied / "cpuset.mems").write_text("0")
    request = SignalRequest(
        hierarchy_version=1,
        hierarchy_id=cpusets.hierarchy_id,
        mount_point=top,
        root=top,
        node_cgroup_id=None,
        measures=False,
    )
    moves: list[TaskMigration] = []
    with closing(KernelSignals(request, check_layout)) as signals:
        signals.send_kinds(kinds_mask(["migration"]))

        def heard() -> int:
            moves.extend(record for record in records(signals) if isinstance(record, TaskMigration))
            return len(moves)

        before = decode_totals(signals.totals())
        for pid in sleepers:
            (emptied / "cgroup.procs").write_text(str(pid))
        assert heard() == N
        second_cpu.write_text("0")
        until(lambda: heard() >= 2 * N, "the kernel has moved them")
        after = decode_totals(signals.totals())
    assert (emptied / "cgroup.procs").read_text() == ""
    into = [record for record in moves if record.cgroup_id == cgroup_id(emptied)]
    out = [record for record in moves if record.cgroup_id == cgroup_id(top)]
    assert {record.pid for record in into} == {record.pid for record in out} == sleepers
    assert len(into) == len(out) == after.migrations - before.migrations - N == N
    assert not any(record.threadgroup for record in out)  # one task after the other


def test_what_is_left_of_a_set_is_restored_while_a_cpu_is_offline(
    cpusets: MemoryHierarchy, second_cpu: Path, tmp_path: Path
) -> None:
    held = cpusets.mount_point / "held"
    held.mkdir()
    (held / "cpuset.cpus").write_text("0-1")
    (held / "cpuset.mems").write_text("0")
    with Journal(tmp_path / "writes.journal") as journal:
        places = Places({"cpuset": ControllerMount(1, cpusets.mount_point)})
        writer = CgroupWriter(places, journal, enforce=True)
        wanted = (CgroupWrite("held", CgroupFile.CPUSET_CPUS, frozenset({1})),)
        assert writer.apply(DesiredState("a test", wanted), 0).writes == 1
        second_cpu.write_text("0")
        until(lambda: (held / "cpuset.cpus").read_text() == "\n", "the kernel takes it out of the set")
        (change,) = writer.restore(1).changes
        assert (change.new, change.detail) == ("0", "the one above it has not CPU 1 any more")
        assert (held / "cpuset.cpus").read_text() == "0\n"
        assert not journal.originals


def take_a_block_away() -> Path:
    """Take the last block of memory offline that the kernel can empty; return its `state` file."""
    blocks = sorted(MEMORY.glob("memory[0-9]*"), key=lambda block: int(block.name.removeprefix("memory")))
    if not blocks:
        pytest.skip(f"{OTHER_MACHINE}its kernel has no memory hotplug (CONFIG_MEMORY_HOTPLUG)")
    for block in reversed(blocks):
        try:
            (block / "state").write_text("offline")
        except OSError:  # it holds what cannot be moved
            continue
        return block / "state"
    pytest.skip(f"{OTHER_MACHINE}none of its {len(blocks)} blocks of memory can be emptied")


def test_memory_that_is_unplugged_and_plugged_again_is_the_nodes(hierarchy: MemoryHierarchy) -> None:
    block_bytes = int((MEMORY / "block_size_bytes").read_text(), 16)
    with NodeWatch(open_scope(hierarchy, None), None, 0) as watch:
        collector = MemoryCollector(watch.scope, watch.signals, watch.index)
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
