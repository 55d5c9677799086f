"""The sink: what it takes, what it loses, and that it never waits."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.events.records import OomKill
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.recorder import recorder as module
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.recorder import Recorder
from koordebpf.store.recorder.ring import RingFolder, Run
from koordebpf.store.recorder.rounds import EncodedRound
from koordebpf.store.recorder.stores import FileStore, Place, RingStore
from koordebpf.store.recorder.values import Pace, RecordedEvent
from koordebpf.store.sink import EVENTS, AgentStopped, FileChanged, NodeSampled, OomKilled, PlanDecided, TickFailed
from koordebpf.units import MIB, NS_PER_S
from tests.support.patience import patience
from tests.support.values.builders import NOW_NS
from tests.support.values.rounds import WALL_NS, round_at, round_ended, tick_at

RUN = Run("0123abcd", "node-1")
OOM = OomKill(NOW_NS, 7, 0, 10, 9, 0, 0, 42, True, "hog")


class SetClock:
    """The time is what a test says."""

    def __init__(self) -> None:
        self.second = 0.0

    def now_ns(self) -> int:
        return NOW_NS + int(self.second * NS_PER_S)

    def wall_s(self) -> float:
        return WALL_NS / NS_PER_S + self.second

    def suspended_ns(self) -> int:
        return 0


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def ring(tmp_path: Path, clock: SetClock) -> Iterator[Recorder]:
    recorder = Recorder(RingStore([Place(tmp_path / "ring", 8 * MIB)], RUN), clock)
    yield recorder
    recorder.close()


def until(is_so: object, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + patience(timeout_s)
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _until_taken(recorder: Recorder, rounds: int) -> None:
    until(lambda: recorder.counts.rounds + recorder.counts.lost_rounds >= rounds)


def play(recorder: Recorder, clock: SetClock, seconds: int, decisions: Sequence[int] = ()) -> None:
    for second in range(seconds):
        clock.second = second
        for sample in range(3):
            recorder.publish(NodeSampled(NOW_NS + second * NS_PER_S - sample, tick_at(0).frame.measured.node))
        recorder.publish(round_ended(second, used_mib=900 if second in decisions else 500))
        _until_taken(recorder, second + 1)


def test_it_takes_events_of_the_union() -> None:
    assert set(Recorder.takes) <= set(EVENTS)


def test_each_round_is_read_as_it_was_published(ring: Recorder, clock: SetClock, tmp_path: Path) -> None:
    play(ring, clock, 20, decisions=[12])
    ring.publish(AgentStopped(0))
    recording = Recording(tmp_path / "ring")
    assert recording.problems == []
    assert len(recording) == 20
    assert recording.decisions == [12]
    for second, found in enumerate(recording.rounds()):
        tick, decision = round_at(second, used_mib=900 if second == 12 else 500)
        assert found.tick == tick and found.is_same(decision)
    assert len(list(recording.samples())) == 60  # all rounds are around the decision
    assert ring.counts.bytes == sum(path.stat().st_size for path in (tmp_path / "ring").iterdir())
    assert ring.counts.reach_s == {Pace.DECISIONS: 19, Pace.SECONDS: 19, Pace.DAY: 19}
    assert 0 < ring.counts.cpu_s < 10


def test_what_happened_between_rounds_is_kept(ring: Recorder, clock: SetClock, tmp_path: Path) -> None:
    outcome = Outcome("u", "spark", "hog", "api", Result.DONE, "gone", 5)
    change = FileChange("/sys/fs/cgroup/x/cpu.max", "max", "1", WriteResult.WRITTEN, "why", 5)
    plan = round_at(1, used_mib=900)[1].plan
    for event in (
        OomKilled(OOM, None, NOW_NS),
        OutcomeArrived(outcome, 6),
        FileChanged(change, 1.0),
        PlanDecided(plan, (outcome,), 1, 2, 3.0),
        TickFailed("why"),
    ):
        ring.publish(event)
    play(ring, clock, 2)
    ring.publish(TickFailed("the last one"))
    ring.close()
    found = Recording(tmp_path / "ring").events()
    assert [each.kind for each in found[:5]] == [
        "OomKilled",
        "OutcomeArrived",
        "FileChanged",
        "PlanDecided",
        "TickFailed",
    ]
    assert found[-1].data == {"reason": "the last one"}
    assert msgspec.convert(found[1].data["outcome"], Outcome) == outcome
    assert msgspec.convert(found[2].data["change"], FileChange) == change
    assert found[3].data["outcomes"][0]["result"] == "done"
    assert found[0].data["record"]["comm"] == "hog"


def test_files_that_change_each_second_leave_room_for_the_rest(ring: Recorder, clock: SetClock, tmp_path: Path) -> None:
    for second in range(100):
        clock.second = second
        for pod in range(30):
            path = f"/pod{pod}/memory.high"
            change = FileChange(path, "0", str(second), WriteResult.WRITTEN, "why", clock.now_ns())
            ring.publish(FileChanged(change, clock.wall_s()))
        ring.publish(round_ended(second))
        _until_taken(ring, second + 1)
    ring.publish(AgentStopped(clock.now_ns()))
    found = [each for each in Recording(tmp_path / "ring").events() if each.kind == "FileChanged"]
    assert len(found) <= 30 * (5 + 2 + 1) + 120 + 100 * 2
    changes = [each.data["change"] for each in found]
    assert {each["path"]: each["new"] for each in changes} == {f"/pod{pod}/memory.high": "99" for pod in range(30)}


def test_around_an_oom_kill_rounds_are_kept_as_around_a_decision(
    ring: Recorder, clock: SetClock, tmp_path: Path
) -> None:
    play(ring, clock, 1)
    ring.publish(OomKilled(OOM, None, NOW_NS))
    play(ring, clock, 3)
    ring.close()
    assert {shard.header.pace for _, shard in Recording(tmp_path / "ring").shards} == {
        Pace.DECISIONS,
        Pace.SECONDS,
        Pace.DAY,
    }


class _Hanging:
    # A disk that answers nothing until it is let go.
    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken: list[EncodedRound] = []
        self.events: list[RecordedEvent] = []
        self.bytes_on_disk = 0

    def add(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> None:
        self.go.wait()
        self.taken.append(made)
        self.events += events

    def add_events(self, events: Sequence[RecordedEvent], wall_ns: int) -> None:
        self.events += events

    def want_around(self, at_ns: int) -> None:
        pass

    def reach_s(self, wall_ns: int) -> dict[Pace, float]:
        return {}

    def close(self) -> None:
        pass


def test_a_disk_that_does_not_answer_keeps_no_publisher(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    disk = _Hanging()
    recorder = Recorder(disk, clock)
    event = round_ended(0)
    recorder.publish(event)
    until(lambda: recorder._waiting_rounds == 0)
    started_s = time.monotonic()
    for _ in range(200):
        recorder.publish(event)
    for _ in range(3000):
        recorder.publish(TickFailed("why"))
    assert time.monotonic() - started_s < patience(10)  # 0.1 s where nothing else runs
    assert recorder.counts.lost_rounds == 200 - module._MAX_ROUNDS
    assert recorder.counts.lost_events == 3000 - module._MAX_EVENTS
    started_s = time.monotonic()
    recorder.close()
    assert time.monotonic() - started_s < patience(10)
    assert "the disk does not answer" in caplog.text
    disk.go.set()
    until(lambda: len(disk.taken) == module._MAX_ROUNDS + 1)
    (lost,) = [each for each in disk.events if each.kind == "RoundsLost"]
    assert lost.data == {"rounds": 200 - module._MAX_ROUNDS}


def test_samples_between_rounds_are_bounded(clock: SetClock, tmp_path: Path) -> None:
    recorder = Recorder(FileStore(tmp_path / "x.rounds", RUN, MIB), clock)
    for at in range(3000):
        recorder.publish(NodeSampled(at, tick_at(0).frame.measured.node))
    recorder.publish(round_ended(0))
    recorder.close()
    assert len(list(Recording(tmp_path / "x.rounds").samples())) == module._MAX_SAMPLES


def test_a_problem_is_said_once_and_its_end_too(
    clock: SetClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "koordebpf")
    other = RingFolder(tmp_path / "ring", Run("ffffffff", "node-1"), 4 * MIB)
    store = RingStore([Place(tmp_path / "ring", 4 * MIB), Place(tmp_path / "run", 4 * MIB)], RUN)
    recorder = Recorder(store, clock)
    play(recorder, clock, 3)
    assert recorder.counts.problem == "another agent records this node"
    assert recorder.counts.lost_rounds == 3
    other.close()
    store._retry_s = 0
    play(recorder, clock, 6)
    recorder.close()
    assert recorder.counts.problem is None
    assert caplog.text.count("another agent records this node") == 1
    assert caplog.text.count("rounds are recorded again; 3 were lost") == 1
    assert not (tmp_path / "run").exists()


def test_where_there_is_no_disk_it_records_in_memory(
    clock: SetClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    store = RingStore([Place(tmp_path / "file" / "ring", 64 * MIB), Place(tmp_path / "run", 4 * MIB)], RUN)
    recorder = Recorder(store, clock)
    play(recorder, clock, 2)
    recorder.close()
    assert len(Recording(tmp_path / "run")) == 2
    assert "in memory alone" in caplog.text and "Not a directory" in caplog.text


def test_with_no_place_at_all_rounds_are_lost_and_counted(clock: SetClock, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recorder = Recorder(RingStore([Place(tmp_path / "file" / "ring", 4 * MIB)], RUN), clock)
    play(recorder, clock, 2)
    recorder.close()
    assert recorder.counts.lost_rounds == 2
    assert "Not a directory" in (recorder.counts.problem or "")


def test_an_error_of_the_recorder_does_not_end_it(
    clock: SetClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path / "x.rounds", RUN, MIB)
    recorder = Recorder(store, clock)
    monkeypatch.setattr(store, "add", lambda *_: 1 / 0)
    recorder.publish(round_ended(0))
    until(lambda: recorder.counts.lost_rounds)
    monkeypatch.undo()
    recorder.publish(round_ended(1))
    recorder.close()
    assert len(Recording(tmp_path / "x.rounds")) == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_file_that_is_full_ends_there_and_is_read(clock: SetClock, tmp_path: Path) -> None:
    path = tmp_path / "x.rounds"
    recorder = Recorder(FileStore(path, RUN, 20_000), clock)
    play(recorder, clock, 100)
    recorder.close()
    assert path.stat().st_size <= 20_000
    recording = Recording(path)
    assert recording.problems == []
    assert 0 < len(recording) == recorder.counts.rounds < 100
    assert recorder.counts.problem == "the recording has ended"


def test_a_recording_is_in_its_place_before_its_first_round(tmp_path: Path) -> None:
    path = tmp_path / "x.rounds"
    path.write_bytes(b"before")
    store = FileStore(path, RUN, MIB)
    assert path.read_bytes() != b"before"
    store.close()
    assert len(Recording(path)) == 0


def test_a_redacted_copy_takes_no_place_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.rounds"
    path.write_bytes(b"before")
    FileStore(path, RUN, MIB, redacted=True).close()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_events_that_cannot_be_written_at_the_end_are_counted(clock: SetClock, tmp_path: Path) -> None:
    recorder = Recorder(FileStore(tmp_path / "x.rounds", RUN, 800), clock)
    for number in range(50):
        recorder.publish(TickFailed(random.Random(number).randbytes(100).hex()))
    recorder.close()
    assert recorder.counts.lost_events == 50


class _Broken(_Hanging):
    # Fails as a fault of the code would, not as a disk does.
    def add(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> None:
        if not self.go.is_set():
            raise ZeroDivisionError("a fault")
        self.taken.append(made)


def test_an_error_that_comes_with_each_round_is_logged_once_until_one_is_written(
    clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = _Broken()
    recorder = Recorder(disk, clock)
    play(recorder, clock, 5)
    said = "thread recorder: an unexpected error; it continues, more of them are only counted"
    assert [each.message for each in caplog.records if each.exc_info] == [said]
    assert (recorder.counts.lost_rounds, recorder.counts.problem) == (5, "an unexpected error; the log has it")
    disk.go.set()
    recorder.publish(round_ended(6))
    until(lambda: recorder.counts.rounds == 1)
    assert recorder.counts.problem is None
    disk.go.clear()
    recorder.publish(round_ended(7))
    recorder.close()
    assert len([each for each in caplog.records if each.exc_info]) == 1  # not each second time


def test_what_the_signals_are_worth_is_recorded_with_each_change_and_again_after_a_while(
    tmp_path: Path, clock: SetClock
) -> None:
    path = tmp_path / "x.rounds"
    recorder = Recorder(FileStore(path, RUN, 8 * MIB), clock)
    other = msgspec.structs.replace(round_ended(0).signals.quality, stalls="none")
    for second in (0, 1, 2, 3, 300, 700):
        clock.second = second
        ended = round_ended(second)
        if second == 2:
            ended = msgspec.structs.replace(ended, signals=msgspec.structs.replace(ended.signals, quality=other))
        recorder.publish(ended)
    recorder.close()
    seen = [each for each in Recording(path).events() if each.kind == "SignalsSeen"]
    assert [round(each.wall_s - WALL_NS / NS_PER_S) for each in seen] == [0, 2, 3, 700]
    assert [each.data["quality"]["stalls"] for each in seen] == ["timed", "none", "timed", "timed"]
    assert all(each.data["kernel"] for each in seen)
