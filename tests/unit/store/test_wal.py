"""What a killed agent was carrying out, as its successor finds it."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.act.evict.cgroup import UnfinishedKill
from koordebpf.kernel.cgroup.kill import KillTarget
from koordebpf.report.pages.explain import explained
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.wal import InFlight
from tests.support.values.builders import frame, plan_of, pod


def decision(decided_ns: int = 2) -> AuditRecord:
    plan = plan_of(frame([pod("hog", anon=300), pod("calm", anon=10)], used=900))
    return OpenPlan(plan, node="n1", dry_run=False, seen_ns=1, decided_ns=decided_ns, wall_s=0.0).record()


def outcome(result: Result) -> Outcome:
    return Outcome("uid-spark-hog", "spark", "hog", "cgroup", result, "why", 2, sent_ns=3)


def started() -> UnfinishedKill:
    target = KillTarget(Path("/sys/fs/cgroup/memory/p"), 7, 1, Path("/sys/fs/cgroup/freezer/p"))
    return UnfinishedKill("uid-spark-hog", "spark", "hog", 2, target)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in-flight.jsonl"


def test_a_decision_that_was_started_is_left_as_interrupted(path: Path) -> None:
    record = decision()
    assert InFlight(path).begin(record)
    (left,) = InFlight(path).left
    assert left.interrupted and not left.outcomes
    assert "1. spark/hog (priority 5000, 300 MiB) was to be evicted" in explained(left)
    assert (left.id, left.sentence, left.features) == (record.id, record.sentence, record.features)


def test_what_became_of_its_victims_is_removed_with_it(path: Path) -> None:
    record, other = decision(), decision(9)
    killed = InFlight(path)
    killed.begin(record)
    killed.begin(other)
    for result in (Result.SENT, Result.DONE, Result.SENT):
        killed.progress(record.id, outcome(result))
    first, second = InFlight(path).left
    assert [each.result for each in first.outcomes] == [Result.DONE]
    assert (second.id, second.outcomes) == (other.id, ())


def test_explain_says_that_the_end_is_not_known(path: Path) -> None:
    killed = InFlight(path)
    record = decision()
    killed.begin(record)
    killed.progress(record.id, outcome(Result.SENT))
    text = " ".join(explained(InFlight(path).left[0]).split())
    assert "1. spark/hog (priority 5000, 300 MiB) asked for, no answer yet by cgroup: why" in text
    assert "The agent ended before it knew what became of this" in text


def test_a_complete_decision_is_left_as_it_was_and_not_as_interrupted(path: Path) -> None:
    record, other = decision(), decision(9)
    killed = InFlight(path)
    killed.begin(record)
    killed.begin(other)
    killed.progress(record.id, outcome(Result.DONE))
    done = replace(record, outcomes=(outcome(Result.DONE),))
    assert killed.complete(done)
    first, second = InFlight(path).left
    assert first == done and not first.interrupted
    assert (second.id, second.interrupted) == (other.id, True)


def test_what_was_reported_is_forgotten(path: Path) -> None:
    entry = InFlight(path)
    entry.begin(decision())
    entry.clear()
    assert InFlight(path).left == ()
    assert entry.begin(decision())
    assert len(InFlight(path).left) == 1
    entry.close()
    assert not path.exists()


@pytest.mark.parametrize(("cut", "left"), [(1, 2), (2, 1), (40, 1), (300, 1)])
def test_the_line_it_was_killed_in_costs_only_itself(path: Path, cut: int, left: int) -> None:
    killed = InFlight(path)
    killed.begin(decision(1))
    killed.begin(decision(2))
    os.truncate(path, path.stat().st_size - cut)
    successor = InFlight(path)
    assert len(successor.left) == left
    successor.begin(decision(3))
    assert len(InFlight(path).left) == left + 1


@contextlib.contextmanager
def full_after(size: int) -> Iterator[None]:
    """Have the kernel take no byte of a file beyond this size, and of a longer write a part, as a full tmpfs does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 40])
def test_no_part_of_a_line_stays_where_the_tmpfs_is_full(path: Path, room: int) -> None:
    entry = InFlight(path)
    assert entry.begin(decision(1))
    size = path.stat().st_size
    with full_after(size + room):
        assert not entry.begin(decision(2))
    assert (path.stat().st_size, entry.dropped) == (size, 1)
    assert entry.begin(decision(3))
    assert [each.decided_ns for each in InFlight(path).left] == [1, 3]


def test_that_line_spoils_no_other_where_the_disk_was_full(path: Path) -> None:
    killed = InFlight(path)
    killed.begin(decision(1))
    killed.begin(decision(2))
    os.truncate(path, path.stat().st_size - 40)
    with full_after(path.stat().st_size):
        successor = InFlight(path)
    assert len(successor.left) == 1
    assert successor.begin(decision(3))
    assert len(InFlight(path).left) == 2


def test_rubbish_and_another_version_are_passed_over(path: Path) -> None:
    path.write_bytes(b'\xff\n{"type": "later"}\n[]\n' + b'{"type": "kill", "later": ' + b"[" * 20_000 + b"\n")
    killed = InFlight(path)
    assert killed.left == ()
    killed.begin(decision())
    assert len(InFlight(path).left) == 1


def test_it_is_bounded_and_counts_what_does_not_fit(path: Path) -> None:
    entry = InFlight(path)
    record = decision()
    noted = sum(entry.begin(record) for _ in range(2_000))
    assert 100 < noted < 2_000
    assert entry.dropped == 2_000 - noted
    assert path.stat().st_size <= 1 << 20


def test_a_link_that_someone_left_there_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    path.symlink_to(tmp_path / "victim")
    log = InFlight(path)
    assert not log.begin(decision())
    log.close()
    assert path.is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_kill_that_has_no_end_is_left_and_what_became_of_it_is_removed_with_its_decision(path: Path) -> None:
    record = decision()
    killed = InFlight(path)
    killed.begin(record)
    killed.kill(started())
    killed.progress(record.id, outcome(Result.SENT))
    successor = InFlight(path)
    assert successor.kills == (started(),)
    (done,) = successor.finish(lambda kill: outcome(Result.DONE) if kill == started() else None)
    assert [each.outcomes for each in successor.left] == [(done,)]
    # Should it be killed now, its own successor finds the same, and nothing to be finished.
    third = InFlight(path)
    assert ([each.outcomes for each in third.left], third.kills) == ([(done,)], ())


@pytest.mark.parametrize("result", [Result.DONE, Result.FAILED, Result.GONE])
def test_a_kill_with_an_end_is_not_left(path: Path, result: Result) -> None:
    record = decision()
    killed = InFlight(path)
    killed.begin(record)
    killed.kill(started())
    killed.progress(record.id, outcome(result))
    assert InFlight(path).kills == ()


def test_a_kill_that_needs_no_finish_leaves_no_outcome(path: Path) -> None:
    killed = InFlight(path)
    killed.begin(decision())
    killed.kill(started())
    successor = InFlight(path)
    assert successor.finish(lambda _: None) == ()
    assert [each.outcomes for each in successor.left] == [()]
