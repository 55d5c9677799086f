"""The ring on disk: shards of each pace in one folder, the oldest removed before the cap is passed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from koordebpf import __version__
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.regular_file import make_folder, open_regular
from koordebpf.store.recorder.rounds import EncodedRound
from koordebpf.store.recorder.shard_file import INDEX_SUFFIX, SUFFIX, ShardFile, index_of, size_on_disk
from koordebpf.store.recorder.values import Pace, RecordedEvent, RecordingHeader
from koordebpf.units import NS_PER_S

_SHARDS = 8  # of a pace at least. Why: with the oldest one an eighth of what is kept is lost
_START_BYTES = 1024  # with which a shard begins, at most
_LOCK = "lock"
_NAME = re.compile(rf"(?:{'|'.join(Pace)})-\d{{10,}}-[0-9a-f]{{8}}-\d+\{SUFFIX}")
_HOUR_NS = 3600 * NS_PER_S


class RingFull(OSError):
    """A round is larger than its pace may have of the disk."""


class _Rule(NamedTuple):
    share: float  # of the cap
    shard_ns: int  # a new shard is made after that long
    keep_ns: int | None  # None: as long as there is room


# Why these shares: on a busy node with 110 pods an hour takes 5 MiB and a day 30 MiB (tests/bench/recorder.py).
RULES = {
    Pace.DECISIONS: _Rule(1 / 4, _HOUR_NS, None),
    Pace.SECONDS: _Rule(3 / 16, _HOUR_NS // 12, _HOUR_NS),
    Pace.DAY: _Rule(9 / 16, _HOUR_NS, 24 * _HOUR_NS),
}


class Run(msgspec.Struct, frozen=True):
    """What is the same in all shards of one run of an agent."""

    id: str  # 8 hexadecimal digits
    node: str

    def header(self, pace: Pace, wall_ns: int) -> RecordingHeader:
        """Return a shard's header."""
        return RecordingHeader(koordebpf=__version__, run=self.id, node=self.node, pace=pace, wall_s=wall_ns / NS_PER_S)


class RingFolder(Closing):
    """The folder of one node, which one agent at a time writes to. Files that have no shard's name are left alone.

    Raises:  OSError, ConfigError: it cannot be made. BlockingIOError: another process writes to it.
    """

    def __init__(self, path: Path, run: Run, max_bytes: int) -> None:
        make_folder(path)
        self.path = path
        self._lock = open_regular(path / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise
        for index in path.glob(f"*{INDEX_SUFFIX}"):
            shard = index.with_suffix(SUFFIX)
            if _NAME.fullmatch(shard.name) and not shard.exists():  # a crash came between
                index.unlink(missing_ok=True)
        self._rings = {
            pace: _PaceRing(path, run, pace, int(rule.share * max_bytes), rule) for pace, rule in RULES.items()
        }

    @property
    def bytes_on_disk(self) -> int:
        """What is on disk, of all shards with their indexes."""
        return sum(each.bytes_on_disk for each in self._rings.values())

    def reach_s(self, wall_ns: int) -> dict[Pace, float]:
        """Return how far back each pace reaches at that time; one that has no shard is left out."""
        oldest = {pace: each.oldest_ns for pace, each in self._rings.items()}
        return {pace: max(wall_ns - at, 0) / NS_PER_S for pace, at in oldest.items() if at is not None}

    def add(self, pace: Pace, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> None:
        """Append a round.

        Raises:  OSError: nothing of it was written. RingFull: it is larger than its pace may be.
        """
        self._rings[pace].add(made, samples_raw, events)

    def add_events(self, pace: Pace, events: Sequence[RecordedEvent], wall_ns: int) -> None:
        """Append events to the shard that is open; where none is, they are dropped.

        Raises:  OSError: they were not written.
        """
        self._rings[pace].add_events(events, wall_ns)

    def sync(self, pace: Pace) -> None:
        """Have what was written at this pace on the disk.

        Raises:  OSError: it is not there.
        """
        self._rings[pace].sync()

    def close(self) -> None:
        """Close all files and let another agent write here. Twice is harmless."""
        for each in self._rings.values():
            each.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class _PaceRing:
    def __init__(self, folder: Path, run: Run, pace: Pace, max_bytes: int, rule: _Rule) -> None:
        self._folder, self._run, self._pace = folder, run, pace
        self._max_bytes = max_bytes
        self._rule = rule
        self._open: ShardFile | None = None
        self._made = 0
        self._closed: dict[Path, int] = {path: _size(path) for path in shards_in(folder, pace)}  # oldest first

    @property
    def bytes_on_disk(self) -> int:
        return sum(self._closed.values()) + (self._open.bytes if self._open else 0)

    @property
    def oldest_ns(self) -> int | None:
        if self._closed:
            return _order(next(iter(self._closed)))[0] * NS_PER_S
        return self._open.made_ns if self._open else None

    def add(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> None:
        shard = self._shard(made.wall_ns)
        records = shard.encode(made, samples_raw, events)
        if not self._make_room(size_on_disk(records)):
            self._rotate()  # what is in the open shard alone leaves no room
            shard = self._shard(made.wall_ns)
            records = shard.encode(made, samples_raw, events)
            if not self._make_room(size_on_disk(records)):
                self._rotate()
                raise RingFull(f"a round of {size_on_disk(records)} bytes, of {self._max_bytes} that {self._pace} has")
        try:
            shard.write(records)
        except OSError:
            self._rotate()  # those after it may need what was not written
            raise

    def add_events(self, events: Sequence[RecordedEvent], wall_ns: int) -> None:
        if self._open:
            records = self._open.encode_events(events, wall_ns)
            if self._make_room(size_on_disk(records)):
                self._open.write(records)

    def sync(self) -> None:
        if self._open:
            self._open.sync()

    def close(self) -> None:
        self._rotate()

    def _shard(self, wall_ns: int) -> ShardFile:
        shard = self._open
        if shard is not None:
            # Also where the wall clock was set back: times within a shard only grow.
            is_old = not 0 <= wall_ns - shard.made_ns < self._rule.shard_ns
            if not is_old and shard.bytes < self._max_bytes // _SHARDS:
                return shard
            self._rotate()
        self._expire(wall_ns)
        if not self._make_room(_START_BYTES):
            raise RingFull(f"{self._max_bytes} bytes for {self._pace} are less than a shard begins with")
        name = f"{self._pace}-{wall_ns // NS_PER_S:010}-{self._run.id}-{self._made}{SUFFIX}"
        self._made += 1
        header = self._run.header(self._pace, wall_ns)
        with_samples = self._pace is Pace.DECISIONS
        shard = self._open = ShardFile(self._folder / name, header, with_samples=with_samples, wall_ns=wall_ns)
        return shard

    def _rotate(self) -> None:
        if self._open is not None:
            self._open.close()
            self._closed[self._open.path] = self._open.bytes
            self._open = None

    def _expire(self, wall_ns: int) -> None:
        if self._rule.keep_ns is None:
            return
        for path in list(self._closed):
            ended_ns = _order(path)[0] * NS_PER_S + self._rule.shard_ns
            if ended_ns < wall_ns - self._rule.keep_ns:
                self._remove(path)

    def _make_room(self, more_bytes: int) -> bool:
        while self.bytes_on_disk + more_bytes > self._max_bytes:
            if not self._closed:
                return False
            self._remove(next(iter(self._closed)))
        return True

    def _remove(self, path: Path) -> None:
        for each in (path, index_of(path)):
            each.unlink(missing_ok=True)
        del self._closed[path]


def shards_in(folder: Path, pace: Pace | None = None) -> list[Path]:
    """Return the shards of a folder, the oldest first; of one pace, or of all.

    Raises:  OSError: the folder cannot be read.
    """
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    if pace is not None:
        found = [path for path in found if path.name.startswith(f"{pace}-")]
    return sorted(found, key=_order)


def _order(path: Path) -> tuple[int, str, int]:
    _, seconds, run, number = path.stem.split("-")
    return int(seconds), run, int(number)


def _size(path: Path) -> int:
    found = 0
    for each in (path, index_of(path)):
        with contextlib.suppress(FileNotFoundError):
            found += each.stat().st_size
    return found
