"""resctrl groups, made, left to others and removed; plain directories in place of resctrl and of pods' cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.strategies.resctrl.decide import Members
from koordebpf.strategies.resctrl.groups import ResctrlGroups, recorded_groups
from koordebpf.units import NS_PER_S

BE = (Members("BE", ("be",)),)


class Rig:
    def __init__(self, folder: Path, *, is_dry_run: bool = False) -> None:
        self.root, self.pods, self.record = folder / "resctrl", folder / "pods", folder / "record.json"
        self.root.mkdir()
        self.changes: list[FileChange] = []
        self.groups = ResctrlGroups(self.root, self.pods, None if is_dry_run else self.record, self.changes.append)

    def successor(self) -> ResctrlGroups:
        return ResctrlGroups(self.root, self.pods, self.record, self.changes.append)

    def apply(self, *groups: str, second: float = 0, members: tuple[Members, ...] = ()) -> list[WriteResult]:
        self.groups.apply(groups, members, int(second * NS_PER_S))
        results = [each.result for each in self.changes]
        self.changes.clear()
        return results

    def made(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir())

    # A group with what the kernel would make in it, and a pod's directory with this many tasks.
    def fill(self, tasks: int) -> Path:
        (self.root / "BE/tasks").write_text("")
        self.run(tasks)
        return self.root / "BE/tasks"

    def run(self, tasks: int, pod: str = "be", first: int = 1000) -> None:
        (self.pods / pod).mkdir(parents=True, exist_ok=True)
        (self.pods / pod / "tasks").write_text("".join(f"{first + number}\n" for number in range(tasks)))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_what_is_wanted_is_made_and_recorded_and_what_is_not_is_removed(rig: Rig) -> None:
    made = frozenset({"BE", "LS"})
    assert rig.apply("BE", "LS") == [WriteResult.WRITTEN] * 2
    assert (rig.made(), rig.groups.made, recorded_groups(rig.record)) == (["BE", "LS"], made, made)
    assert rig.apply("BE", "LS") == []
    assert rig.apply("LS") == [WriteResult.WRITTEN]
    rig.groups.restore(0)
    assert (rig.made(), rig.record.exists()) == ([], False)


def test_a_dry_run_says_once_what_it_would_make_and_makes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, is_dry_run=True)
    assert rig.apply("BE", members=BE) == [WriteResult.DRY_RUN]
    assert rig.apply("BE", members=BE) == []
    assert rig.made() == []


def test_nothing_is_made_that_cannot_be_recorded(rig: Rig) -> None:
    rig.record.mkdir()
    assert rig.apply("BE") == [WriteResult.HELD]
    assert rig.made() == []


def test_a_group_that_another_process_made_is_refused_and_stays(rig: Rig) -> None:
    (rig.root / "BE").mkdir()
    assert rig.apply("BE") == [WriteResult.REFUSED]
    rig.groups.restore(0)
    assert (rig.made(), rig.groups.made) == (["BE"], frozenset())


def test_one_that_another_process_has_made_again_is_its_own(rig: Rig) -> None:
    rig.apply("BE")
    (rig.root / "BE").rename(rig.root / "moved")  # so that its inode is not given again
    (rig.root / "BE").mkdir()
    assert rig.apply() == []
    assert (rig.made(), rig.groups.made) == (["BE", "moved"], frozenset())


def test_one_that_was_recorded_and_not_made_is_forgotten(rig: Rig) -> None:
    rig.apply("BE")
    rig.record.write_text(rig.record.read_text().replace(str((rig.root / "BE").stat().st_ino), "0"))
    (rig.root / "BE").rmdir()
    rig.groups = rig.successor()
    assert rig.apply("BE") == [WriteResult.WRITTEN]
    assert rig.made() == ["BE"]


def test_one_that_was_recorded_and_made_before_the_agent_was_killed_is_ours(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(path: Path) -> None:
        os.mkdir(path)  # noqa: PTH102
        raise SystemExit

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(SystemExit):
        rig.apply("BE")
    rig.successor().restore(0)
    assert (rig.made(), rig.record.exists()) == ([], False)


def test_one_that_keeps_being_removed_is_left_alone_for_an_hour(rig: Rig) -> None:
    results: list[WriteResult] = []
    for second in range(30):
        results += rig.apply("BE", "LS", second=second)
        if (rig.root / "BE").exists():
            (rig.root / "BE").rmdir()
    assert results == [WriteResult.WRITTEN] * 14 + [WriteResult.YIELDED]
    assert rig.made() == ["LS"]
    assert rig.apply("BE", "LS", second=3700) == [WriteResult.WRITTEN]


class TestTasks:
    def test_a_task_is_moved_once_and_one_that_is_there_already_never(self, rig: Rig) -> None:
        rig.apply("BE")
        tasks = rig.fill(2)
        tasks.write_text("1000\n")
        assert rig.apply("BE", members=BE) == []
        assert (tasks.read_text(), rig.groups.moved) == ("1001\n", 1)

    def test_new_tasks_are_looked_for_each_ten_seconds_and_where_members_are_others(self, rig: Rig) -> None:
        rig.apply("BE")
        rig.fill(1)
        moved = []
        for second, members in ((0, BE), (9.9, BE), (10, BE), (10, (*BE, *BE)), (20, (*BE, *BE))):
            (rig.root / "BE/tasks").write_text("")
            rig.apply("BE", second=100 + second, members=members)
            moved.append(rig.groups.moved)
        assert moved == [1, 1, 2, 3, 4]

    def test_so_many_are_moved_in_a_round_and_the_rest_in_the_next_ones(self, rig: Rig) -> None:
        rig.apply("BE")
        rig.fill(513)
        rig.apply("BE", members=BE)
        assert rig.groups.moved == 512
        (rig.root / "BE/tasks").write_text("".join(f"{1000 + number}\n" for number in range(512)))
        rig.apply("BE", members=BE, second=1)
        assert rig.groups.moved == 513

    def test_as_many_as_fit_a_round_are_all_of_them(self, rig: Rig) -> None:
        rig.apply("BE")
        rig.fill(512)
        for second in (0, 1):
            rig.apply("BE", members=BE, second=second)
        assert rig.groups.moved == 512

    def test_those_of_the_next_pod_wait_for_the_next_round(self, rig: Rig) -> None:
        rig.apply("BE")
        rig.fill(400)
        rig.run(400, "more", first=2000)
        both = (Members("BE", ("be", "more")),)
        rig.apply("BE", members=both)
        assert rig.groups.moved == 512
        rig.run(512, "be")
        rig.apply("BE", members=both, second=20)
        assert rig.groups.moved == 2 * 512
        (rig.root / "BE/tasks").write_text((rig.pods / "be/tasks").read_text())
        rig.apply("BE", members=both, second=21)
        assert rig.groups.moved == 2 * 512 + 400

    def test_what_is_left_of_a_round_is_for_the_next_members(self, rig: Rig) -> None:
        rig.apply("BE", "LS")
        rig.fill(512)
        (rig.root / "LS/tasks").write_text("")
        both = (*BE, Members("LS", ("be",)))
        rig.apply("BE", "LS", members=both)
        assert rig.groups.moved == 512
        (rig.root / "BE/tasks").write_text((rig.pods / "be/tasks").read_text())
        rig.apply("BE", "LS", members=both)
        assert rig.groups.moved == 2 * 512

    def test_a_group_that_cannot_be_opened_is_named_once(self, rig: Rig) -> None:
        rig.apply("BE")
        results = [rig.apply("BE", members=BE, second=second) for second in (0, 10)]
        assert results == [[WriteResult.REFUSED], []]
        (rig.root / "BE/tasks").write_text("")
        assert rig.apply("BE", second=20) == []

    def test_one_that_cannot_be_removed_stays_recorded_and_is_named_once(self, rig: Rig) -> None:
        rig.apply("BE")
        rig.fill(0)
        assert rig.apply() == [WriteResult.REFUSED]
        assert rig.apply() == []
        assert recorded_groups(rig.record) == {"BE"}
