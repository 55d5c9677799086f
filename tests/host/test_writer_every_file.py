"""Every file that a strategy writes and this kernel has: refused, gone, fought for, and left by a killed agent."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer import places as of_places
from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile, Value, format_cpu_list, is_table
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile import DesiredState
from koordebpf.units import MIB, NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.host.one_file import ERRORS, MOMENTS, killed_at_write
from tests.host.rigs.cgroups import Cgroups, desired, made_cgroups
from tests.support.loop_disk import LoopDisk

POD, OTHER = "pod", "other"
_OF_DEVICE = (CgroupFile.IO_WEIGHT, CgroupFile.IO_LATENCY)
# Values that no new cgroup has. Fakes have those of Anolis kernels, and io.cost (test_writer_fake_files).
WANTED: dict[CgroupFile, Value] = {
    CgroupFile.CPUSET_CPUS: frozenset({0}),
    CgroupFile.CPU_QUOTA: 50_000,
    CgroupFile.CPU_PERIOD: 50_000,
    CgroupFile.CPU_BURST: 20_000,
    CgroupFile.CPU_SHARES: 512,
    CgroupFile.CPU_IDLE: 1,
    CgroupFile.MEMORY_LIMIT: 64 * MIB,
    CgroupFile.MEMORY_SOFT_LIMIT: 32 * MIB,
    CgroupFile.MEMORY_MIN: 8 * MIB,
    CgroupFile.MEMORY_LOW: 16 * MIB,
    CgroupFile.MEMORY_HIGH: 48 * MIB,
    CgroupFile.MEMORY_OOM_GROUP: 1,
    CgroupFile.FREEZE: 1,
    CgroupFile.IO_READ_BPS: 10 * MIB,
    CgroupFile.IO_WRITE_BPS: 11 * MIB,
    CgroupFile.IO_READ_IOPS: 100,
    CgroupFile.IO_WRITE_IOPS: 101,
    CgroupFile.IO_WEIGHT: 50,
    CgroupFile.IO_LATENCY: 5_000,
}


class Tree:
    """Two pods with the files of every controller; `device` is one that limits can be of."""

    def __init__(self, cgroups: Cgroups, journal: Path, device: str) -> None:
        self.cgroups, self.journal, self.device = cgroups, journal, device
        for path in ("", POD, OTHER):
            if path:
                cgroups.make(path)
            cgroups.put(path, CgroupFile.CPUSET_CPUS, format_cpu_list(os.sched_getaffinity(0)))

    def has(self, file: CgroupFile) -> bool:
        """Tell whether the kernel has the file; a burst needs a quota to be above, which it then gets."""
        found = self.cgroups.places.locate((self.cgroups.path(POD), file))
        if found is None or not found.exists():
            return False
        if file is CgroupFile.CPU_BURST:
            for path in (POD, OTHER):
                self.cgroups.put(path, CgroupFile.CPU_QUOTA, "100000")
        return True

    def value(self, file: CgroupFile) -> Value:
        wanted = WANTED[file]
        return Table.of({self.device: wanted}) if is_table(file) and isinstance(wanted, int) else wanted

    def holds(self, path: str, file: CgroupFile) -> Value:
        return self.cgroups.places.parse((self.cgroups.path(path), file), self.cgroups.text(path, file))

    def put_back(self, file: CgroupFile, text: str) -> None:
        """Write as another process does; a table's row is lifted by its limit 0 or max."""
        if is_table(file):
            places, key = self.cgroups.places, (self.cgroups.path(POD), file)
            (text,) = places.writes(key, self.value(file), Table())
        self.cgroups.put(POD, file, text)

    def writer(self, journal: Journal) -> CgroupWriter:
        return CgroupWriter(self.cgroups.places, journal, enforce=True)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path_factory.mktemp("disk")) as disk:
        yield disk


@pytest.fixture
def tree(tmp_path: Path, disk: LoopDisk) -> Iterator[Tree]:
    with made_cgroups(("memory", "io", "blkio", "freezer")) as cgroups:
        yield Tree(cgroups, tmp_path / "writes.journal", disk.number)


# Those that a new cgroup can have here: of a weight and a latency target the device decides.
@pytest.fixture(params=list(WANTED))
def file(tree: Tree, request: pytest.FixtureRequest) -> CgroupFile:
    found: CgroupFile = request.param
    if not tree.has(found):
        pytest.skip(f"{OTHER_MACHINE}it has no {found.value}")
    with Journal(tree.journal) as journal:
        writer = tree.writer(journal)
        (change,) = writer.apply(desired(tree.cgroups, (POD, found, tree.value(found))), 0).changes
        writer.restore(1)
    if change.result in (WriteResult.REFUSED, WriteResult.UNSUPPORTED) and found in _OF_DEVICE:
        pytest.skip(f"{OTHER_MACHINE}its device takes no {found.value}: {change.detail}")
    assert change.result is WriteResult.WRITTEN, change
    tree.journal.unlink(missing_ok=True)
    return found


def both(tree: Tree, file: CgroupFile) -> DesiredState:
    return desired(tree.cgroups, *((path, file, tree.value(file)) for path in (POD, OTHER)))


def test_it_is_written_and_restored(tree: Tree, file: CgroupFile) -> None:
    before = tree.cgroups.text(POD, file)
    with Journal(tree.journal) as journal:
        writer = tree.writer(journal)
        assert [each.result for each in writer.apply(both(tree, file), 0).changes] == [WriteResult.WRITTEN] * 2
        key = tree.cgroups.path(POD), file
        assert tree.cgroups.places.is_held(key, tree.holds(POD, file), tree.value(file))
        assert writer.restore(1).left == ()
        assert not journal.originals
    assert tree.cgroups.text(POD, file) == before


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_refused_write_fails_alone_and_leaves_nothing(
    tree: Tree, file: CgroupFile, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a kernel that refuses the file of one of two pods
    before = tree.cgroups.text(POD, file)
    refused, real = tree.cgroups.file(POD, file), os.write

    def write(fd: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink() == refused:
            raise OSError(number, os.strerror(number))
        return real(fd, data)

    with Journal(tree.journal) as journal:
        writer = tree.writer(journal)
        monkeypatch.setattr(os, "write", write)
        # WHEN both are written
        report = writer.apply(both(tree, file), 0)
        # THEN that one is reported by its error, the other one is written, and all is as before at the end
        results = {Path(each.path).parent.name: (each.result, each.detail) for each in report.changes}
        assert results[OTHER][0] is WriteResult.WRITTEN
        assert results[POD][0] in (WriteResult.REFUSED, WriteResult.BUSY, WriteResult.UNSUPPORTED)
        assert errno.errorcode[number] in results[POD][1]
        assert tree.cgroups.text(POD, file) == before
        monkeypatch.undo()
        assert writer.restore(1).left == ()
        assert not journal.originals
    assert {tree.cgroups.text(path, file) for path in (POD, OTHER)} == {before}


def test_a_cgroup_that_is_removed_before_its_write_fails_alone(
    tree: Tree, file: CgroupFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = of_places.write_kernel_file

    def write(path: Path, *given: object) -> str:
        if path.parent.name == POD and path.exists():
            tree.cgroups.remove(POD)
        return real(path, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(of_places, "write_kernel_file", write)
    with Journal(tree.journal) as journal:
        writer = tree.writer(journal)
        report = writer.apply(both(tree, file), 0)
        results = {Path(each.path).parent.name: each.result for each in report.changes}
        assert results == {POD: WriteResult.GONE, OTHER: WriteResult.WRITTEN}
        assert writer.restore(1).left == ()
        assert not journal.originals


def test_another_process_that_writes_each_second_is_left_the_file(tree: Tree, file: CgroupFile) -> None:
    # GIVEN a file that this agent writes, and another process that writes what it was before
    theirs = tree.holds(POD, file)
    text = tree.cgroups.places.format((tree.cgroups.path(POD), file), theirs)
    wanted = desired(tree.cgroups, (POD, file, tree.value(file)))
    with Journal(tree.journal) as journal:
        writer = tree.writer(journal)
        written = 0
        # WHEN it does so each second, and this agent looks each ten
        for second in range(0, 600, 10):
            written += sum(
                each.result is WriteResult.WRITTEN for each in writer.apply(wanted, second * NS_PER_S).changes
            )
            tree.put_back(file, text)
        # THEN the agent gives in after a dozen times, and what the other one wrote stays
        assert 2 <= written <= 14
        assert writer.restore(700 * NS_PER_S).left == ()
        assert tree.holds(POD, file) == theirs


@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_killed_agent_left_is_restored(tree: Tree, file: CgroupFile, moment: str) -> None:
    before = tree.cgroups.text(POD, file)

    def write() -> None:
        with Journal(tree.journal) as journal:
            tree.writer(journal).apply(desired(tree.cgroups, (POD, file, tree.value(file))), 0)

    killed_at_write(tree.cgroups.file(POD, file), moment, write)
    assert (tree.cgroups.text(POD, file) == before) == (moment == "journalled")
    report = restore_journal(tree.journal, tree.cgroups.places, 0)
    assert (report.left, report.lost_lines) == ((), 0)
    assert tree.cgroups.text(POD, file) == before
