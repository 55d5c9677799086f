"""What a dry run logs of what another agent did not restore, and what it ends of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from koordebpf.act.evict.cgroup import UnfinishedKill
from koordebpf.act.writer.journal import JOURNAL_PATH, OLD_LADDER_JOURNAL, Journal
from koordebpf.act.writer.owners import LADDER, SUPPRESS
from koordebpf.act.writer.places import Original
from koordebpf.agent.lifecycle.standby import left_behind
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.kill import KillTarget
from koordebpf.store.node_lock import NodeLock
from koordebpf.store.wal import IN_FLIGHT_PATH, InFlight
from tests.support.fixtures import make_tree
from tests.unit.agent.test_sole_agent import machine

Make = Callable[[dict[str, dict[str, str]]], Path]
JOURNAL, IN_FLIGHT = JOURNAL_PATH.name, IN_FLIGHT_PATH.name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "machine"
    path.mkdir()
    return path


def record(path: Path, *owners: str) -> None:
    """Write a journal of one file for each of these owners."""
    with Journal(path) as journal:
        journal.record(
            {(f"p{at}", CgroupFile.CPU_QUOTA): Original("-1\n", 7, (each,)) for at, each in enumerate(owners)}
        )


def kill(folder: Path, *pods: Path) -> None:
    """Leave kills of these in flight."""
    in_flight = InFlight(folder / IN_FLIGHT)
    for path in pods:
        target = KillTarget(path, path.stat().st_ino, 2)
        assert in_flight.kill(UnfinishedKill(path.name, "be", path.name, 1, target))


def ladder(folder: Path, files: int, frozen: int, journal: str = JOURNAL) -> str:
    return (
        f"an agent that was killed has left {files} files of its ladder written and {frozen} pods frozen; one with"
        f" --enforce ends that, or: koordebpf restore --journal {folder / journal} --in-flight {folder / IN_FLIGHT}"
    )


def test_where_nothing_is_left_nothing_is_said(folder: Path) -> None:
    assert left_behind(folder) == ()
    record(folder / JOURNAL, "cpu-burst")
    kill(folder)
    assert left_behind(folder) == ()


def test_what_the_ladder_and_suppression_wrote_is_counted_and_said_how_to_end(folder: Path) -> None:
    record(folder / JOURNAL, LADDER, LADDER, SUPPRESS)
    assert left_behind(folder) == (
        ladder(folder, 2, 0),
        "an agent that ended has left 1 files as suppression wrote them; one with --enforce continues from there, or:"
        f" koordebpf restore --journal {folder / JOURNAL}",
    )


def test_the_ladders_old_journal_counts_too(folder: Path) -> None:
    record(folder / JOURNAL, LADDER)
    record(folder / OLD_LADDER_JOURNAL, SUPPRESS, SUPPRESS)
    assert left_behind(folder) == (ladder(folder, 3, 0, OLD_LADDER_JOURNAL),)


def test_a_pod_that_was_frozen_in_a_kill_is_thawed(folder: Path, tree: Make) -> None:
    pods = tree({"frozen": {"cgroup.freeze": "1\n"}, "runs": {"cgroup.freeze": "0\n"}})
    kill(folder, pods / "frozen", pods / "runs")
    assert left_behind(folder) == (
        "an agent that was killed has left pod be/frozen frozen in the middle of a kill: it is thawed",
    )
    assert (pods / "frozen" / "cgroup.freeze").read_text() == "0\n"


def test_a_pod_that_stays_frozen_is_counted(folder: Path, tree: Make) -> None:
    pods = tree({"frozen": {"cgroup.freeze": "1\n"}})
    kill(folder, pods / "frozen")
    (pods / "frozen").rename(pods / "old")
    make_tree(pods, {"frozen": {"cgroup.freeze": "1\n"}})  # another cgroup in its place
    assert left_behind(folder) == (ladder(folder, 0, 1),)


def test_what_an_agent_that_acts_now_has_in_force_is_not_left(folder: Path, tree: Make) -> None:
    pods = tree({"frozen": {"cgroup.freeze": "1\n"}})
    record(folder / JOURNAL, LADDER, SUPPRESS)
    kill(folder, pods / "frozen")
    with NodeLock(folder.parent, machine()):
        assert left_behind(folder) == ()
        assert (pods / "frozen" / "cgroup.freeze").read_text() == "1\n"


def test_a_record_that_cannot_be_read_is_one_sentence(folder: Path) -> None:
    (folder / JOURNAL).mkdir()
    (sentence,) = left_behind(folder)
    assert sentence.startswith("what an agent before this one may have left in force cannot be read: ")
