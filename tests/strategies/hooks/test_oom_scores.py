"""oom_score_adj of real processes; plain directories in place of containers' cgroups.

A process counts only where its own cgroup bears the container's name: the directory here bears that of the test's.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.kernel.proc.tasks import change_score
from koordebpf.policy.reconcile import TaskSetting
from koordebpf.strategies.hooks.tasks import OomScores, processes_in

NAME = max(line.rpartition("/")[2] for line in Path("/proc/self/cgroup").read_text().splitlines())
PATH = f"pod/{NAME}"
OWN = int(Path("/proc/self/oom_score_adj").read_text())


class Rig:
    def __init__(self, folder: Path) -> None:
        self.root, self.record = folder / "cgroup", folder / "record.json"
        self.container = self.root / PATH
        self.container.mkdir(parents=True)
        self.changes: list[FileChange] = []
        self.scores = self.successor()

    def successor(self) -> OomScores:
        return OomScores(self.root, self.record, self.changes.append)

    def holds(self, *processes: int) -> None:
        (self.container / "cgroup.procs").write_text("".join(f"{each}\n" for each in processes))

    def take(self) -> list[tuple[WriteResult, str | None, str]]:
        taken = [(each.result, each.old, each.new) for each in self.changes]
        self.changes.clear()
        return taken


def wants(score: int | str, path: str = PATH) -> list[TaskSetting]:
    return [TaskSetting(path, "team/web", "a", score, "OOMScoreAdj", "annotation oom-score-adj")]


def of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def pids(rig: Rig) -> Iterator[list[int]]:
    waits = [sys.executable, "-S", "-E", "-c", "import sys; sys.stdin.read()"]
    processes = [subprocess.Popen(waits, stdin=subprocess.PIPE) for _ in range(2)]
    numbers = [each.pid for each in processes]
    rig.holds(*numbers)
    yield numbers
    for each in processes:
        each.communicate()


def test_all_processes_of_a_container_get_its_score_and_then_what_they_had(rig: Rig, pids: list[int]) -> None:
    rig.scores.apply(wants(700), 0)
    assert [of(pid) for pid in pids] == [700, 700]
    assert rig.take() == [(WriteResult.WRITTEN, str(OWN), "700")] * 2
    rig.scores.apply(wants(700), 1)
    assert rig.take() == []
    rig.scores.apply([], 2)
    assert [of(pid) for pid in pids] == [OWN, OWN]
    assert rig.take() == [(WriteResult.WRITTEN, "700", str(OWN))] * 2
    assert not rig.record.exists()


def test_after_another_score_they_have_again_what_they_had_before_the_first(rig: Rig, pids: list[int]) -> None:
    for score in (700, 800):
        rig.scores.apply(wants(score), 0)
        assert of(pids[0]) == score
    after = rig.successor()
    after.restore(1)
    assert [of(pid) for pid in pids] == [OWN, OWN]
    assert not rig.record.exists()


def test_one_that_another_process_has_changed_since_stays(rig: Rig, pids: list[int]) -> None:
    rig.scores.apply(wants(700), 0)
    Path(f"/proc/{pids[0]}/oom_score_adj").write_text("750")
    rig.take()
    rig.scores.restore(1)
    assert [of(pid) for pid in pids] == [750, OWN]
    assert len(rig.take()) == 1


def test_a_container_that_is_made_again_under_its_name_is_another_one(rig: Rig, pids: list[int]) -> None:
    rig.scores.apply(wants(700), 0)
    rig.container.rename(rig.root / "old")
    rig.container.mkdir()
    rig.holds(*pids)
    rig.take()
    rig.scores.apply([], 1)
    assert ([of(pid) for pid in pids], rig.take()) == ([700, 700], [])
    # what its processes have is its own
    rig.scores.apply(wants(800), 2)
    rig.scores.restore(3)
    assert [of(pid) for pid in pids] == [700, 700]


def test_a_dry_run_says_what_it_would_write_once(rig: Rig, pids: list[int]) -> None:
    dry = OomScores(rig.root, None, rig.changes.append)
    for now_ns in (0, 1):
        dry.apply(wants(700), now_ns)
    assert rig.take() == [(WriteResult.DRY_RUN, str(OWN), "700")]
    assert [of(pid) for pid in pids] == [OWN, OWN]


def test_a_container_that_is_gone_is_forgotten(rig: Rig, pids: list[int]) -> None:
    rig.scores.apply(wants(700), 0)
    rig.container.rename(rig.root / "old")
    rig.scores.apply([], 1)
    assert not rig.record.exists()


def test_what_was_recorded_in_another_form_is_removed(rig: Rig) -> None:
    rig.record.write_text("{}")
    rig.successor().restore(0)
    assert not rig.record.exists()


def test_a_process_that_has_ended_says_nothing_of_the_others(rig: Rig, pids: list[int]) -> None:
    rig.holds(-1, *pids)
    rig.scores.apply(wants(700), 0)
    rig.scores.restore(1)
    assert [of(pid) for pid in pids] == [OWN, OWN]


def test_nothing_is_changed_that_cannot_be_recorded(rig: Rig, pids: list[int]) -> None:
    rig.record.mkdir()
    rig.scores.apply(wants(700), 0)
    assert ([of(pid) for pid in pids], rig.take()) == ([OWN, OWN], [])


def test_what_is_gone_or_no_number_is_left_out(rig: Rig, pids: list[int]) -> None:
    rig.scores.apply([*wants("a group"), *wants(700, "pod/gone")], 0)
    assert ([of(pid) for pid in pids], rig.take()) == ([OWN, OWN], [])


def test_a_refused_score_is_reported_and_the_other_processes_get_it(rig: Rig, pids: list[int]) -> None:
    rig.scores.apply(wants(2000), 0)
    assert [each.detail for each in rig.changes] == ["Invalid argument"]
    assert rig.take() == [(WriteResult.REFUSED, str(OWN), "2000")]
    assert [of(pid) for pid in pids] == [OWN, OWN]


class TestOneProcess:
    def test_it_says_what_was_before(self, pids: list[int]) -> None:
        assert [change_score(pids[0], NAME, 700), change_score(pids[0], NAME, 700)] == [OWN, 700]
        assert (of(pids[0]), of(pids[1])) == (700, OWN)

    def test_it_is_changed_only_from_what_it_should_have(self, pids: list[int]) -> None:
        assert change_score(pids[0], NAME, 700, only_from=OWN + 1) == OWN
        assert of(pids[0]) == OWN
        assert change_score(pids[0], NAME, 700, only_from=OWN) == OWN
        assert of(pids[0]) == 700

    def test_one_of_another_cgroup_or_gone_is_left_alone(self, pids: list[int]) -> None:
        assert change_score(pids[0], "another", 700) is None
        assert change_score(2**22 + 1, NAME, 700) is None
        assert of(pids[0]) == OWN


class TestProcesses:
    def test_those_of_another_pid_namespace_are_left_out(self, rig: Rig) -> None:
        rig.holds(0, 1, 7)
        assert processes_in(rig.container) == (rig.container.stat().st_ino, {1, 7})
        assert processes_in(rig.root / "gone") is None

    def test_of_many_directories_the_first_are_looked_into(self, rig: Rig) -> None:
        for number in range(300):
            (rig.container / str(number)).mkdir()
            (rig.container / str(number) / "cgroup.procs").write_text(f"{1000 + number}\n")
        rig.holds(1)
        found = processes_in(rig.container)
        assert found is not None
        assert len(found[1]) == 256
