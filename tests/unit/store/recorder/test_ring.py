"""The folder of a ring: its cap, its ages, its lock, and a disk that takes nothing."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from koordebpf.store.recorder import shard_file
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import RULES, RingFolder, RingFull, Run, shards_in
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.values import Pace, RecordedEvent
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.rounds import encoded, wall_ns

RUN = Run("0123abcd", "node-1")


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_the_shares_are_the_whole_cap() -> None:
    assert sum(rule.share for rule in RULES.values()) == 1


def test_the_cap_holds_after_each_round_with_what_is_written_to_now(tmp_path: Path) -> None:
    chance, encoder = random.Random(7), RoundEncoder()
    cap = MIB
    with RingFolder(tmp_path, RUN, cap) as ring:
        for second in range(300):
            made = encoded(second, encoder, pods=110, seed=second)
            for pace in chance.sample(list(RULES), 2):
                ring.add(pace, made, b"", [])
                assert on_disk(tmp_path) == ring.bytes_on_disk <= cap
    assert all(len(shards_in(tmp_path, pace)) >= 4 for pace in RULES)
    assert shards_in(tmp_path, Pace.SECONDS)[0].name > f"seconds-{wall_ns(10) // NS_PER_S}"
    assert on_disk(tmp_path) > cap // 2


def test_the_oldest_shards_go_first(tmp_path: Path) -> None:
    encoder = RoundEncoder()
    with RingFolder(tmp_path, RUN, 4 * MIB) as ring:
        for second in range(300):
            ring.add(Pace.SECONDS, encoded(second, encoder, pods=110, seed=second), b"", [])
    recording = Recording(tmp_path)
    assert recording.problems == []
    assert recording.times_ns[-1] == wall_ns(299)
    assert recording.times_ns == [wall_ns(second) for second in range(300 - len(recording), 300)]


def test_a_round_that_is_larger_than_its_share_is_refused_and_the_next_one_written(tmp_path: Path) -> None:
    with RingFolder(tmp_path, RUN, 266_000) as ring:
        large = encoded(0, pods=110)
        event = RecordedEvent("TickFailed", 1.0, {"reason": random.Random(1).randbytes(60_000).hex()})
        with pytest.raises(RingFull):
            ring.add(Pace.SECONDS, large, b"", [event])
        ring.add(Pace.SECONDS, encoded(1, pods=2), b"", [])
        assert on_disk(tmp_path) <= 50_000
    assert len(Recording(tmp_path)) == 1


def test_a_share_that_holds_no_shard_is_refused(tmp_path: Path) -> None:
    with RingFolder(tmp_path, RUN, 1000) as ring, pytest.raises(RingFull, match="less than a shard begins with"):
        ring.add(Pace.SECONDS, encoded(0), b"", [])


@pytest.mark.parametrize(("pace", "hours"), [(Pace.SECONDS, 1), (Pace.DAY, 24)])
def test_what_is_older_than_its_pace_keeps_is_removed(tmp_path: Path, pace: Pace, hours: int) -> None:
    encoder, second = RoundEncoder(), hours * 3600
    with RingFolder(tmp_path, RUN, 64 * MIB) as ring:
        ring.add(pace, encoded(0, encoder), b"", [])
        (old,) = shards_in(tmp_path, pace)
        ring.add(pace, encoded(second, encoder), b"", [])
        ring.add(pace, encoded(second - 1, encoder), b"", [])  # the clock was set back: a shard of its own
        assert old in shards_in(tmp_path, pace)
        ring.add(pace, encoded(2 * second, encoder), b"", [])
        assert old not in shards_in(tmp_path, pace)
        assert not old.with_suffix(".index").exists()


def test_shards_of_agents_before_count_and_are_read_apart(tmp_path: Path) -> None:
    for run in ("aaaaaaaa", "bbbbbbbb"):
        with RingFolder(tmp_path, Run(run, "node-1"), 4 * MIB) as ring:
            ring.add(Pace.SECONDS, encoded(0), b"", [])
            assert ring.bytes_on_disk == on_disk(tmp_path)
    recording = Recording(tmp_path)
    assert len(recording) == 2
    assert {shard.header.run for _, shard in recording.shards} == {"aaaaaaaa", "bbbbbbbb"}


def test_files_of_others_are_left_alone_and_not_read(tmp_path: Path) -> None:
    others = ("notes.txt", "seconds-1-x-0.rounds", "seconds-1800000000-0123abcd-0.rounds.bak", "x.index")
    for name in others:
        (tmp_path / name).write_bytes(b"theirs")
    with RingFolder(tmp_path, RUN, 400_000) as ring:
        for second in range(100):
            ring.add(Pace.SECONDS, encoded(second, seed=second, pods=20), b"", [])
    assert [(tmp_path / name).read_bytes() for name in others] == [b"theirs"] * 4
    assert all(path.name not in others for path, _ in Recording(tmp_path).shards)


def test_an_index_whose_shard_is_gone_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "seconds-1800000000-0123abcd-0.index"
    left.write_bytes(b"x")
    RingFolder(tmp_path, RUN, 4 * MIB).close()
    assert not left.exists()


def test_one_agent_at_a_time_writes(tmp_path: Path) -> None:
    first = RingFolder(tmp_path, RUN, 4 * MIB)
    with pytest.raises(BlockingIOError):
        RingFolder(tmp_path, RUN, 4 * MIB)
    first.close()
    first.close()
    RingFolder(tmp_path, RUN, 4 * MIB).close()


def test_events_that_no_round_follows_are_in_the_open_shard(tmp_path: Path) -> None:
    event = RecordedEvent("TickFailed", 1.0, {})
    with RingFolder(tmp_path, RUN, 4 * MIB) as ring:
        ring.add_events(Pace.DAY, [event], wall_ns(0))  # none is open
        ring.add(Pace.DAY, encoded(0), b"", [])
        ring.add_events(Pace.DAY, [event], wall_ns(1))
        ring.sync(Pace.DAY)
        ring.sync(Pace.SECONDS)
    assert Recording(tmp_path).events() == [event]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_what_a_disk_refuses_leaves_the_shard_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    encoder, real = RoundEncoder(), os.write
    with RingFolder(tmp_path, RUN, 4 * MIB) as ring:
        ring.add(Pace.DAY, encoded(0, encoder), b"", [])

        def refuse(fd: int, data: bytes) -> int:
            if error == errno.ENOSPC:
                return real(fd, data[: len(data) // 2])  # as a disk that has a page left
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(shard_file.os, "write", refuse)
        with pytest.raises(OSError) as refused:
            ring.add(Pace.DAY, encoded(5, encoder), b"", [])
        assert refused.value.errno == error
        monkeypatch.undo()
        ring.add(Pace.DAY, encoded(10, encoder), b"", [])
        assert ring.bytes_on_disk == on_disk(tmp_path)
    recording = Recording(tmp_path)
    assert (recording.times_ns, recording.problems) == ([wall_ns(0), wall_ns(10)], [])


def test_a_shard_that_cannot_be_made_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RingFolder(tmp_path, RUN, 4 * MIB) as ring:
        monkeypatch.setattr(shard_file.os, "write", lambda fd, data: 0)
        with pytest.raises(OSError, match="No space left"):
            ring.add(Pace.DAY, encoded(0), b"", [])
        monkeypatch.undo()
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
        ring.add(Pace.DAY, encoded(1), b"", [])
    assert len(Recording(tmp_path)) == 1


def test_an_index_that_is_not_written_is_missed_by_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with RingFolder(tmp_path, RUN, 4 * MIB) as ring:
        sizes: list[int] = []

        def half(fd: int, data: bytes) -> int:
            sizes.append(len(data))
            if len(sizes) % 2:
                return real(fd, data)
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(shard_file.os, "write", half)
        for second in range(0, 50, 5):
            ring.add(Pace.DAY, encoded(second), b"", [])
    assert len(Recording(tmp_path)) == 10


def test_times_are_those_of_the_rounds(tmp_path: Path) -> None:
    with RingFolder(tmp_path, RUN, 4 * MIB) as ring:
        ring.add(Pace.SECONDS, encoded(3), b"", [])
    (path,) = shards_in(tmp_path)
    assert path.name == f"seconds-{wall_ns(3) // NS_PER_S}-0123abcd-0.rounds"


def test_only_root_reads_what_was_recorded(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with RingFolder(tmp_path / "kept" / "machine", RUN, 4 * MIB) as ring:
            ring.add(Pace.SECONDS, encoded(0), b"", [])
    finally:
        os.umask(old)
    assert (tmp_path / "kept" / "machine").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "kept" / "machine").iterdir()} == {0o600}
