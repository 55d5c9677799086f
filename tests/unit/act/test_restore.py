"""What is restored of a journal that another agent left, on directories in place of cgroups.

Numbers of one length: a file of a disk keeps what is behind the last byte written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.act.writer.change import WriteReport, WriteResult
from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.places import Original, Places
from koordebpf.act.writer.restore import RestoreReport, restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import ActuationError
from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.policy.reconcile import CgroupWrite, DesiredState

POD = ("pod", CgroupFile.MEMORY_HIGH)
HIGH = "pod/memory.high"


class Machine:
    """A pod's cgroup whose `memory.high` of 8192 an agent has made 4096."""

    def __init__(self, root: Path) -> None:
        self.root = root / "cgroup"
        self.journal = root / "journal"
        self.places = Places({"memory": ControllerMount(2, self.root)}, root / "proc_sys")
        self.set(HIGH, "8192\n")
        with Journal(self.journal) as journal:
            CgroupWriter(self.places, journal, enforce=True).apply(
                DesiredState("a test", (CgroupWrite(*POD, 4096),)), 0
            )
        assert self.of(HIGH) == "4096\n"

    def set(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def of(self, name: str) -> str:
        return (self.root / name).read_text()

    def restore(self, *, dry_run: bool = False) -> RestoreReport:
        return restore_journal(self.journal, self.places, 1, dry_run=dry_run)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def said(report: RestoreReport) -> list[tuple[WriteResult, str]]:
    return [(each.result, each.detail) for each in report.changes]


def test_what_a_file_held_at_first_is_written_and_its_journal_is_done_with(machine: Machine) -> None:
    report = machine.restore()
    assert (said(report), report.done, report.left) == ([(WriteResult.WRITTEN, "")], (POD,), ())
    assert (report.changes[0].old, report.changes[0].new) == ("4096", "8192")
    assert machine.of(HIGH) == "8192\n"
    assert not machine.journal.exists()
    assert machine.restore() == RestoreReport()


def test_a_dry_run_says_what_it_would_write_and_changes_neither_file_nor_journal(machine: Machine) -> None:
    with machine.journal.open("a") as file:
        file.write("of a later version\n")
    before = machine.journal.read_bytes()
    report = machine.restore(dry_run=True)
    assert (said(report), report.done, report.left) == ([(WriteResult.DRY_RUN, "")], (), (POD,))
    assert report.lost_lines == 1
    assert (machine.of(HIGH), machine.journal.read_bytes()) == ("4096\n", before)
    assert machine.restore().lost_lines == 1
    assert b"of a later version" in machine.journal.read_bytes()


def test_a_cgroup_that_is_gone_is_done_with(machine: Machine) -> None:
    shutil.rmtree(machine.root / "pod")
    report = machine.restore()
    assert (said(report), report.done) == ([(WriteResult.GONE, "the cgroup is gone")], (POD,))


def test_one_that_was_made_again_under_its_name_is_left_as_it_is(machine: Machine) -> None:
    (machine.root / "pod").rename(machine.root / "before")
    machine.set(HIGH, "4096\n")
    report = machine.restore()
    assert (said(report), report.done) == ([(WriteResult.GONE, "another cgroup has its name")], (POD,))
    assert machine.of(HIGH) == "4096\n"


def test_a_controller_that_was_turned_off_has_reset_its_files(machine: Machine) -> None:
    (machine.root / HIGH).unlink()
    report = machine.restore()
    assert said(report) == [(WriteResult.GONE, "its controller was turned off, which has reset it")]
    assert report.done == (POD,)


def test_a_sysctl_that_this_kernel_has_no_more_is_done_with(machine: Machine) -> None:
    (machine.root.parent / "proc_sys/vm").mkdir(parents=True)
    key = ("", Sysctl.WATERMARK_SCALE_FACTOR)
    with Journal(machine.journal) as journal:
        journal.forget([POD])
        journal.record({key: Original("10\n", 0)})
    report = machine.restore()
    assert (said(report), report.done) == ([(WriteResult.GONE, "this kernel has it no more")], (key,))


def test_what_cannot_be_written_is_left_and_stays_in_the_journal(machine: Machine) -> None:
    original = Original("garbage\n", (machine.root / HIGH).stat().st_ino)
    with Journal(machine.journal) as journal:
        journal.record({POD: original})
    report = machine.restore()
    assert [each.result for each in report.changes] == [WriteResult.REFUSED]
    assert (report.done, report.left) == ((), (POD,))
    assert read_journal(machine.journal) == ({POD: original}, 0)


def test_a_journal_in_use_is_not_restored(machine: Machine) -> None:
    with Journal(machine.journal), pytest.raises(ActuationError, match="an agent is using it"):
        machine.restore()
    assert machine.of(HIGH) == "4096\n"


@pytest.mark.parametrize(("now", "result"), [("2048\n", WriteResult.YIELDED), ("4096\n", WriteResult.WRITTEN)])
def test_the_agent_itself_leaves_what_another_process_has_written_since(
    machine: Machine, now: str, result: WriteResult
) -> None:
    machine.restore()
    with Journal(machine.journal) as journal:
        writer = CgroupWriter(machine.places, journal, enforce=True)
        writer.apply(DesiredState("a test", (CgroupWrite(*POD, 4096),)), 0)
        machine.set(HIGH, now)
        report = writer.restore(1)
        assert [each.result for each in report.changes] == [result]
        assert (report.done, report.left) == ((POD,), ())
    assert machine.of(HIGH) == (now if result is WriteResult.YIELDED else "8192\n")


class Sets:
    """Sets of CPUs of v1: the machine's, the best-effort directory's and those of two pods."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = Places({"cpuset": ControllerMount(1, root / "cpuset")})
        for path, cpus in {"": "0-2", "be": "0-1", "be/copied": "0-1", "be/own": "1-1"}.items():
            (root / "cpuset" / path).mkdir(parents=True, exist_ok=True)
            self.file(path).write_text(f"{cpus}\n")

    def file(self, path: str) -> Path:
        return self.root / "cpuset" / path / "cpuset.cpus"

    def restore(self, original: str) -> RestoreReport:
        key = ("be", CgroupFile.CPUSET_CPUS)
        with Journal(self.root / "journal") as journal:
            journal.record({key: Original(original, self.file("be").stat().st_ino)})
        return restore_journal(self.root / "journal", self.places, 1)

    def cpus(self) -> dict[str, str]:
        return {path: self.file(path).read_text().strip() for path in ("be", "be/copied", "be/own")}


@pytest.fixture
def sets(tmp_path: Path) -> Iterator[Sets]:
    yield Sets(tmp_path)


def test_on_v1_a_set_gets_the_cpus_that_are_left_above_it_and_its_copies_follow(sets: Sets) -> None:
    report = sets.restore("0-3\n")
    assert sets.cpus() == {"be": "0-2", "be/copied": "0-2", "be/own": "1-1"}
    assert set(said(report)) == {(WriteResult.WRITTEN, "the one above it has not CPU 3 any more")}
    assert report.left == ()


def test_on_v1_a_set_whose_cpus_are_all_there_is_restored_to_the_byte(sets: Sets) -> None:
    report = sets.restore("0-2\n")
    assert sets.cpus() == {"be": "0-2", "be/copied": "0-2", "be/own": "1-1"}
    assert set(said(report)) == {(WriteResult.WRITTEN, "")}


def test_on_v1_where_it_holds_what_it_held_at_first_no_other_set_is_written(sets: Sets) -> None:
    report = sets.restore("0-1\n")
    assert sets.cpus() == {"be": "0-1", "be/copied": "0-1", "be/own": "1-1"}
    assert (report.changes, report.left) == ((), ())


def test_of_the_changes_of_a_report_those_that_were_written_count_as_writes(machine: Machine) -> None:
    (change,) = machine.restore().changes
    refused = replace(change, result=WriteResult.REFUSED)
    assert WriteReport((change, refused, refused)).writes == 1
