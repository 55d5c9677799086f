"""resctrl that refuses, ends, is fought for, and is left by a killed agent: over a fake of its files.

No CPU of this project's machines has resctrl. The fake answers each mkdir, rmdir and write(2) through the kernel, so
that an error is one of a system call.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.task_record import TaskRecord
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import Sysctl
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.strategies.resctrl.decide import Members
from koordebpf.strategies.resctrl.groups import ResctrlGroups
from koordebpf.strategies.resctrl.values import GROUPS
from koordebpf.units import NS_PER_S
from tests.host.fake_mount import mounted
from tests.host.one_file import ERRORS, Faults, OneFile, Vanishing
from tests.support.fake_resctrl import FakeResctrl
from tests.support.hierarchies import remove_tree

# What is wanted of a domain, of the cache and of bandwidth.
WANTED = {"BE/L3/0": 0xF, "BE/MB/8": 50}


@pytest.fixture
def fake() -> FakeResctrl:
    return FakeResctrl()


@pytest.fixture
def root(fake: FakeResctrl, tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "sys/fs/resctrl", fake.root())


class TestSchemata(Faults, Vanishing):
    """A domain's value in group BE, beside one in group LS."""

    @pytest.fixture
    def gone(self) -> WriteResult:
        return WriteResult.GONE

    @pytest.fixture(params=WANTED)
    def file(self, root: Path, fake: FakeResctrl, tmp_path: Path, request: pytest.FixtureRequest) -> OneFile:
        for name in ("BE", "LS"):
            (root / name).mkdir()

        def refuse(number: int | None) -> None:
            fake.refusals = {} if number is None else {"BE/schemata": number}

        wanted = ((request.param, Sysctl.RESCTRL_SCHEMATA), WANTED[request.param])
        other = (("LS/L3/8", Sysctl.RESCTRL_SCHEMATA), 0x7)
        places = Places({}, sysfs=root.parents[1])
        return OneFile(places, wanted, other, tmp_path / "journal", refuse=refuse, remove=(root / "BE").rmdir)

    def test_what_another_process_writes_into_other_domains_stays(self, file: OneFile, fake: FakeResctrl) -> None:
        with Journal(file.journal) as journal:
            audited: list[FileChange] = []
            writer = CgroupWriter(file.places, journal, enforce=True, audit=audited.append)
            for second in range(0, 600, 10):
                writer.apply(file.wanted(), second * NS_PER_S)
                file.path.write_text(f"MB:0={20 + second % 20}\n")
                file.path.write_text("L3:8=7\n")
            assert [(each.result, each.is_correction) for each in audited] == [(WriteResult.WRITTEN, False)]
        assert restore_journal(file.journal, file.places, 600 * NS_PER_S).left == ()
        assert fake.schemata["BE"] == {"L3": {0: 0x7FF, 8: 0x7}, "MB": {0: 30, 8: 100}}


class Rig:
    """Groups with their record and what they reported; tasks are looked up in `pods`."""

    def __init__(self, root: Path, pods: Path, folder: Path) -> None:
        self.root, self.pods, self.folder = root, pods, folder
        self.record = folder / GROUPS
        self.changes: list[FileChange] = []
        self.groups = self.successor()

    def successor(self) -> ResctrlGroups:
        """Return those of the next agent."""
        return ResctrlGroups(self.root, self.pods, self.record, self.changes.append)

    def take(self) -> list[tuple[str, WriteResult, str]]:
        """Return what was reported since the last call."""
        taken = [(Path(each.path).name, each.result, each.detail) for each in self.changes]
        self.changes.clear()
        return taken


@pytest.fixture
def pods() -> Iterator[Path]:
    mounts = find_controllers()
    mount = mounts.get("cpu") or next(iter(mounts.values()))
    top = mount.mount_point / f"koordebpf-resctrl-faults-{os.getpid()}"
    (top / "be").mkdir(parents=True)
    yield top
    remove_tree(top)


@pytest.fixture
def task(pods: Path) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    (pods / "be/cgroup.procs").write_text(str(process.pid))
    yield process.pid
    process.kill()
    process.communicate()


class TestGroups:
    members = (Members("BE", ("be",)),)

    @pytest.fixture
    def rig(self, root: Path, pods: Path, tmp_path: Path) -> Rig:
        return Rig(root, pods, tmp_path)

    @pytest.mark.parametrize("number", (*ERRORS, errno.ENOSPC), ids=errno.errorcode.get)
    def test_a_group_that_is_refused_is_named_once_and_made_when_it_can_be(
        self, rig: Rig, fake: FakeResctrl, number: int
    ) -> None:
        fake.refusals["mkdir"] = number
        for second in range(3):
            rig.groups.apply(("BE",), (), second * NS_PER_S)
        assert rig.take() == [("BE", WriteResult.REFUSED, errno.errorcode[number])]
        assert rig.groups.made == rig.successor().made == frozenset()
        fake.refusals.clear()
        rig.groups.apply(("BE",), (), 3 * NS_PER_S)
        assert rig.take() == [("BE", WriteResult.WRITTEN, "")]
        rig.groups.restore(4 * NS_PER_S)
        assert set(fake.schemata) == {""}

    @pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
    def test_a_group_that_cannot_be_removed_stays_recorded(self, rig: Rig, fake: FakeResctrl, number: int) -> None:
        rig.groups.apply(("BE",), (), 0)
        rig.take()
        fake.refusals["rmdir"] = number
        rig.groups.apply((), (), NS_PER_S)
        rig.groups.restore(2 * NS_PER_S)
        assert rig.take() == [("BE", WriteResult.REFUSED, errno.errorcode[number])]
        fake.refusals.clear()
        after = rig.successor()
        assert after.made == {"BE"}
        after.restore(3 * NS_PER_S)
        assert set(fake.schemata) == {""}
        assert not rig.record.exists()

    @pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
    def test_a_task_that_is_refused_is_named_once_and_moved_when_it_can_be(
        self, rig: Rig, fake: FakeResctrl, task: int, number: int
    ) -> None:
        fake.refusals["BE/tasks"] = number
        rig.groups.apply(("BE",), self.members, 0)
        rig.groups.apply(("BE",), self.members, 10 * NS_PER_S)
        assert rig.take() == [("BE", WriteResult.WRITTEN, ""), ("tasks", WriteResult.REFUSED, errno.errorcode[number])]
        assert (fake.tasks, rig.groups.moved) == ({}, 0)
        fake.refusals.clear()
        rig.groups.apply(("BE",), self.members, 20 * NS_PER_S)
        assert fake.tasks == {task: "BE"}

    @pytest.mark.parametrize("moment", ["made", "open", "listed"])
    def test_a_group_that_is_removed_before_its_tasks_are_moved_is_made_again(
        self, rig: Rig, fake: FakeResctrl, task: int, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # GIVEN another process that removes the group once the agent has made it, opened its tasks, or read them
        real_open, real_read, real_write, group = os.open, os.pread, os.pwrite, rig.root / "BE"

        def open_(path: Path, *given: int, **more: int) -> int:
            if path == group / "tasks" and moment == "made" and group.exists():
                group.rmdir()
            return real_open(path, *given, **more)

        def read(fd: int, size: int, offset: int) -> bytes:
            if moment == "open" and group.exists():
                group.rmdir()
            return real_read(fd, size, offset)

        def write(fd: int, data: bytes, offset: int) -> int:
            if moment == "listed" and group.exists():
                group.rmdir()
            return real_write(fd, data, offset)

        monkeypatch.setattr(os, "open", open_)
        monkeypatch.setattr(os, "pread", read)
        monkeypatch.setattr(os, "pwrite", write)
        rig.groups.apply(("BE",), self.members, 0)
        assert rig.take() == [("BE", WriteResult.WRITTEN, ""), ("tasks", WriteResult.GONE, "the group is gone")]
        monkeypatch.undo()
        # WHEN it leaves the group alone, THEN that is made again, and its tasks are moved
        rig.groups.apply(("BE",), self.members, 10 * NS_PER_S)
        assert rig.take() == [("BE", WriteResult.WRITTEN, "")]
        assert fake.tasks == {task: "BE"}

    def test_another_process_that_removes_it_each_second_is_left_alone(
        self, rig: Rig, fake: FakeResctrl, task: int
    ) -> None:
        for second in range(60):
            rig.groups.apply(("BE",), self.members, second * NS_PER_S)
            if (rig.root / "BE").exists():
                (rig.root / "BE").rmdir()
        made = [result for name, result, _ in rig.take() if name == "BE"]
        assert made == [WriteResult.WRITTEN] * 13 + [WriteResult.YIELDED]
        assert not rig.record.exists()
        # an hour later it is made once more
        rig.groups.apply(("BE",), self.members, 3700 * NS_PER_S)
        assert fake.tasks == {task: "BE"}
        rig.groups.restore(3701 * NS_PER_S)
        assert (set(fake.schemata), fake.tasks) == ({""}, {})

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    @pytest.mark.parametrize("step", ["recorded", "made", "noted", "removed"])
    def test_what_a_killed_agent_left_is_removed(self, rig: Rig, fake: FakeResctrl, step: str) -> None:
        pid = os.fork()
        if pid == 0:
            _make_and_die(rig, step)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        assert ("BE" in fake.schemata) == (step in ("made", "noted"))
        after = rig.successor()
        assert after.made == {"BE"}
        after.restore(1)
        assert set(fake.schemata) == {""}
        assert not rig.record.exists()

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    @pytest.mark.parametrize("step", ["recorded", "made", "noted"])
    def test_what_a_killed_agent_left_is_continued(self, rig: Rig, fake: FakeResctrl, task: int, step: str) -> None:
        pid = os.fork()
        if pid == 0:
            _make_and_die(rig, step)
        os.waitpid(pid, 0)
        after = rig.successor()
        after.apply(("BE",), self.members, 1)
        assert (set(fake.schemata), fake.tasks) == ({"", "BE"}, {task: "BE"})
        after.restore(2)
        assert (set(fake.schemata), fake.tasks) == ({""}, {})


# At the record before mkdir, at mkdir, at the record after it, and at rmdir.
def _make_and_die(rig: Rig, step: str) -> None:
    save, mkdir, rmdir = TaskRecord.save, Path.mkdir, Path.rmdir
    saved = 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def save_and_die(record: TaskRecord[dict[str, int]], value: dict[str, int]) -> bool:
        nonlocal saved
        done = save(record, value)
        saved += 1
        if (step, saved) in (("recorded", 1), ("noted", 2)):
            die()
        return done

    def mkdir_and_die(path: Path) -> None:
        mkdir(path)
        if step == "made":
            die()

    def rmdir_and_die(path: Path) -> None:
        rmdir(path)
        die()

    try:
        TaskRecord.save = save_and_die  # type: ignore[assignment,method-assign]
        Path.mkdir = mkdir_and_die  # type: ignore[assignment,method-assign]
        Path.rmdir = rmdir_and_die  # type: ignore[method-assign]
        rig.groups.apply(("BE",), (), 0)
        rig.groups.restore(1)
    finally:
        os._exit(1)
