"""What became of a kill by cgroup, and what is restored after one that was interrupted, on trees of both versions."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest
from msgspec.structs import replace

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor, UnfinishedKill, finish_kill, frozen_by, how_it_ended, thaw_left
from koordebpf.kernel.cgroup.kill import KillReport, KillTarget
from koordebpf.kernel.cgroup.lifted import CpuPlace, limits_of
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import MIB, NS_PER_MS
from tests.support.patience import patience
from tests.unit.act.test_executors import victim

REPORT = KillReport("cgroup.kill", 3, 1, 0, 0, 0, signalled_ns=7_000_000_000, empty_ns=7_000_000_000 + 4 * NS_PER_MS)
NONE_DIED = replace(REPORT, killed_tasks=0)
EMPTY = {"cgroup.freeze": "0\n", "cgroup.kill": "", "cgroup.procs": "", "cgroup.events": "populated 0\n"}


def pod(tree, held_bytes: int = 7, **files: str) -> Path:
    """Return the directory of a v2 pod that holds so much that cannot be reclaimed."""
    stat = f"inactive_file 9999999\nactive_file 9999999\ninactive_anon 0\nactive_anon {held_bytes - 7}\nunevictable 7\n"
    memory = {"memory.current": "9\n", "memory.max": "max\n", "memory.stat": stat, "memory.events": "oom_kill 0\n"}
    root: Path = tree({"pod": {**memory, **files}})
    return root / "pod"


def target(path: Path) -> KillTarget:
    return KillTarget(path, path.stat().st_ino, 2)


def test_a_kill_is_done_when_its_cgroup_is_empty_and_says_how_long_that_took(tree):
    ended = how_it_ended(REPORT, target(pod(tree, 64 * MIB)))
    assert ended == (Result.DONE, "killed 3 processes by cgroup.kill, gone 4 ms after the signal")


@pytest.mark.parametrize(
    ("held_bytes", "result"), [(7, Result.DONE), (MIB - 1, Result.DONE), (MIB, Result.FAILED), (9 * MIB, Result.FAILED)]
)
def test_where_no_process_was_found_it_is_done_only_if_less_than_a_mebibyte_stays(tree, held_bytes, result):
    found, detail = how_it_ended(NONE_DIED, target(pod(tree, held_bytes)))
    assert found is result
    assert ("no process was found in it, and it still holds" in detail) is (result is Result.FAILED)


def test_processes_that_outlive_its_deadline_are_counted_with_those_that_cannot_be_seen(tree):
    late = replace(REPORT, empty_ns=None, left_tasks=2, unseen_tasks=1)
    assert how_it_ended(late, target(pod(tree))) == (Result.FAILED, "3 processes still there 10 s after the signal")


@pytest.mark.parametrize(("count", "more"), [(3, ""), (4, " and 1 more"), (7, " and 4 more")])
def test_of_the_processes_that_may_not_be_signalled_three_are_named(tree, count, more):
    refusals = tuple((number, "EACCES") for number in range(1, count + 1))
    result, detail = how_it_ended(replace(REPORT, left_tasks=count, refusals=refusals), target(pod(tree)))
    assert result is Result.FAILED
    assert f"{count} of which this agent may not signal (pid 1: EACCES, pid 2: EACCES, pid 3: EACCES{more}):" in detail


def test_only_a_cgroup_that_is_frozen_itself_was_left_by_a_kill(tree):
    running = UnfinishedKill("u", "be", "p", 1, target(pod(tree, **{"cgroup.freeze": "0\n"})))
    assert (frozen_by(running), thaw_left(running), finish_kill(running)) == (None, False, None)
    frozen = UnfinishedKill("u", "be", "p", 1, target(pod(tree, **{"cgroup.freeze": "1\n"})))
    assert frozen_by(frozen) == frozen.target.memory_path


@pytest.mark.parametrize("has_freezer", [False, True])
def test_on_v1_it_is_the_freezers_directory_that_is_looked_at(tree, has_freezer):
    path = pod(tree, **{"freezer.self_freezing": "1\n", "freezer.state": "FROZEN\n"})
    on_v1 = replace(target(path), version=1, memory_path=path / "none", freezer_path=path if has_freezer else None)
    kill = UnfinishedKill("u", "be", "p", 1, on_v1)
    assert frozen_by(kill) == (path if has_freezer else None)
    assert thaw_left(kill) is has_freezer
    assert (path / "freezer.state").read_text().startswith("THAWED" if has_freezer else "FROZEN")


@pytest.mark.parametrize("is_another", [False, True])
def test_what_was_left_frozen_is_thawed_unless_another_cgroup_is_in_its_place(tree, is_another):
    path = pod(tree, **{"cgroup.freeze": "1\n"})
    meant = replace(target(path), cgroup_id=path.stat().st_ino + is_another)
    assert thaw_left(UnfinishedKill("u", "be", "p", 1, meant)) is not is_another
    assert (path / "cgroup.freeze").read_text() == ("1\n" if is_another else "0\n")


@pytest.mark.parametrize("restored", [thaw_left, finish_kill])
def test_cpu_limits_that_were_lifted_are_restored_though_nothing_is_frozen(tree, restored):
    path = pod(tree, **{"cgroup.freeze": "0\n", "cpu.max": "5000 100000\n"})
    place = CpuPlace(path, 2, path.stat().st_ino)
    limits = limits_of(place)
    (path / "cpu.max").write_text("max 100000\n")  # as the kernel shows it once it is lifted
    assert not restored(UnfinishedKill("u", "be", "p", 1, replace(target(path), cpu=place), limits))
    assert (path / "cpu.max").read_text().startswith("5000 100000")
    # AND a kill that had lifted none, or knows of no place, leaves them as they are
    (path / "cpu.max").write_text("max 100000\n")
    for cpu, of_kill in ((place, ()), (None, limits)):
        assert not restored(UnfinishedKill("u", "be", "p", 1, replace(target(path), cpu=cpu), of_kill))
    assert (path / "cpu.max").read_text() == "max 100000\n"


def test_an_interrupted_kill_is_finished_and_thawed_whatever_its_memory_file_says(tree):
    path = pod(tree, **{**EMPTY, "cgroup.freeze": "1\n"})
    kill = UnfinishedKill("u", "be", "p", 5, target(path))
    ended = finish_kill(kill)
    assert ended is not None
    assert (ended.uid, ended.executor, ended.result, ended.decided_ns) == ("u", "cgroup", Result.DONE, 5)
    assert ended.detail.startswith("the agent before this one was ended in the middle of it, finished now: killed 0")
    assert (path / "cgroup.freeze").read_text() == "0\n"
    (path / "cgroup.freeze").write_text("1\n")
    (path / "memory.stat").write_text("garbage\n")
    odd = finish_kill(kill)
    assert odd is not None
    assert odd.result is Result.FAILED
    assert "memory.stat" in odd.detail
    assert (path / "cgroup.freeze").read_text() == "0\n"


def test_every_kill_has_its_outcome_though_a_memory_file_before_could_not_be_read(tree):
    path = pod(tree, **EMPTY)
    stat = (path / "memory.stat").read_text()
    (path / "memory.stat").write_text("garbage\n")
    woken: SimpleQueue[None] = SimpleQueue()
    outcomes = OutcomeQueue(lambda: woken.put(None))
    executor = CgroupExecutor(lambda *_: target(path), outcomes, enforce=True)
    candidate = replace(victim().candidate, cgroup_id=path.stat().st_ino)

    def ended() -> Outcome:
        assert executor.submit(replace(victim(), candidate=candidate), 1).result is Result.SENT
        woken.get(timeout=patience(10))
        (outcome,) = outcomes.drain()
        return outcome

    for _ in range(4):  # more than there are threads
        odd = ended()
        assert odd.result is Result.FAILED
        assert "memory.stat" in odd.detail
    (path / "memory.stat").write_text(stat)
    assert ended().result is Result.DONE
    executor.close()
