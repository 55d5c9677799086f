"""Files and folders that a person names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.errors import ConfigError
from koordebpf.store.recorder.magic import is_recording_path
from koordebpf.store.recorder.read import Recording, shards_of
from koordebpf.store.recorder.ring import RULES, RingFolder, Run, shards_in
from koordebpf.store.recorder.stores import FileStore
from koordebpf.store.recorder.values import Pace, RecordedEvent
from koordebpf.tools.recorder.rounds import open_recording
from koordebpf.units import MIB
from tests.support.values.rounds import encoded, wall_ns

RUN = Run("0123abcd", "node-1")


def ring(folder: Path, seconds: int = 12) -> Path:
    with RingFolder(folder, RUN, 8 * MIB) as made:
        for second in range(seconds):
            for pace in RULES:
                if pace is not Pace.DAY or second % 5 == 0:
                    made.add(pace, encoded(second, used_mib=900 if second == 7 else 500), b"[[1,2,3,4,5,6]]", [])
    return folder


def test_a_round_of_several_paces_is_there_once_and_in_order(tmp_path: Path) -> None:
    recording = Recording(ring(tmp_path))
    assert recording.times_ns == [wall_ns(second) for second in range(12)]
    assert recording.decisions == [7]
    assert len(list(recording.samples())) == 12  # of one pace alone
    assert [each.wall_ns for each in recording.rounds(3, 5)] == [wall_ns(3), wall_ns(4)]


def test_what_one_pace_lost_another_still_has(tmp_path: Path) -> None:
    ring(tmp_path)
    (shard,) = shards_in(tmp_path, Pace.DECISIONS)
    shard.write_bytes(shard.read_bytes()[:-10])
    recording = Recording(tmp_path)
    assert len(recording) == 12
    assert len(recording.problems) == 1 and "the file ends within a record" in recording.problems[0]


def test_a_shard_that_is_none_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    ring(tmp_path)
    (shard,) = shards_in(tmp_path, Pace.SECONDS)
    shard.write_bytes(b"\0" * 500)
    recording = Recording(tmp_path)
    assert len(recording) == 12
    assert any(str(shard) in each for each in recording.problems)


@pytest.mark.parametrize("name", ["all-1700000000-0123abcd-9.rounds", "all-1700000000-0123abcd-9.index"])
def test_a_pipe_among_shards_is_not_waited_for(tmp_path: Path, name: str) -> None:
    ring(tmp_path)
    if name.endswith(".index"):
        (tmp_path / name.replace("index", "rounds")).write_bytes(shards_in(tmp_path, Pace.SECONDS)[0].read_bytes())
    os.mkfifo(tmp_path / name)
    recording = Recording(tmp_path)
    assert len(recording) == 12
    assert any(f"{tmp_path / name}: must be a regular file" in each for each in recording.problems)


def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="must be a regular file"):
        open_recording(str(tmp_path / "pipe"))


def test_nothing_but_damage_is_no_recording(tmp_path: Path) -> None:
    ring(tmp_path)
    for shard in shards_in(tmp_path):
        shard.write_bytes(b"")
    with pytest.raises(ConfigError, match="must be a recording"):
        Recording(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no shard is there"):
        Recording(tmp_path / "empty")


def test_the_folder_above_those_of_nodes_is_read_too(tmp_path: Path) -> None:
    ring(tmp_path / "machine", 2)
    ring(tmp_path / "kind-a", 2)
    assert len(shards_of(tmp_path)) == 6


def test_a_shard_that_the_agent_removes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    ring(tmp_path)
    gone = shards_in(tmp_path)[0]
    gone.unlink()
    gone.symlink_to(tmp_path / "nothing")  # is listed, and not there
    recording = Recording(tmp_path)
    assert (len(recording.shards), recording.problems) == (2, [])


def test_of_shards_that_are_too_large_together_the_oldest_are_left_out(tmp_path: Path) -> None:
    with RingFolder(tmp_path, RUN, 8 * MIB) as made:
        for second in range(0, 1500, 50):
            made.add(Pace.SECONDS, encoded(second), b"", [])
    shards = Recording(tmp_path).shards
    assert len(shards) == 5
    held = [shard.content.held_bytes for _, shard in shards]
    found = Recording(tmp_path, most_bytes=sum(held[-3:]))
    assert [path for path, _ in found.shards] == [path for path, _ in shards[-3:]]
    assert [each.partition(":")[0] for each in found.problems] == [str(path) for path, _ in reversed(shards[:2])]
    assert "larger than may be held" in found.problems[0]
    assert found.times_ns == Recording(tmp_path).times_ns[-len(found) :]


def test_events_that_are_small_on_disk_and_large_when_read_count_as_that(tmp_path: Path) -> None:
    small, large = FileStore(tmp_path / "small", RUN, 8 * MIB), FileStore(tmp_path / "large", RUN, 8 * MIB)
    for store, length in ((small, 1), (large, 4 * MIB)):
        store.add(encoded(0), b"", [RecordedEvent("TickFailed", 0.0, {"reason": "x" * length})])
        store.close()
    assert (tmp_path / "large").stat().st_size < 2 * (tmp_path / "small").stat().st_size
    Recording(tmp_path / "small", most_bytes=MIB)
    with pytest.raises(ConfigError, match="larger than may be held"):
        Recording(tmp_path / "large", most_bytes=MIB)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="larger than may be held"):
        Recording(tmp_path / "large", most_bytes=MIB)


def test_a_damaged_round_is_none_and_named(tmp_path: Path) -> None:
    path = ring(tmp_path)
    (shard,) = shards_in(path, Pace.SECONDS)
    for other in (Pace.DECISIONS, Pace.DAY):
        for each in shards_in(path, other):
            each.unlink()
    data = bytearray(shard.read_bytes())
    recording = Recording(path)
    head = recording.shards[0][1].rounds[0]
    data[head.end - 1] ^= 1
    shard.write_bytes(data)
    again = Recording(path)
    assert again.round(0) is None
    assert list(again.rounds()) == []
    assert f"{shard}: offset" in again.problems[-1]


@pytest.mark.parametrize("start", [b"", b"KRR", b"KRR2", b"{}" * 40, b"PERFILE2" * 10])
def test_what_begins_otherwise_is_no_recording(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "x").write_bytes(start)
    assert not is_recording_path(str(tmp_path / "x"))


def test_a_shard_is_known_by_its_beginning(tmp_path: Path) -> None:
    ring(tmp_path)
    assert all(is_recording_path(str(path)) for path in shards_in(tmp_path))
