"""Recordings read: one file, or the folder of an agent's ring, as rounds in the order in which they were decided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from koordebpf.errors import ConfigError, DecodeError
from koordebpf.kernel.io.regular_file import open_to_read, read_at_most
from koordebpf.store.recorder.ring import shards_in
from koordebpf.store.recorder.rounds import ReadRound, ShardReader
from koordebpf.store.recorder.shard import Head
from koordebpf.store.recorder.shard_file import index_of
from koordebpf.store.recorder.values import NodeSample, Pace, RecordedEvent

MOST_HELD_BYTES: Final = 2 << 30  # Why: the largest file that is written is a GiB, and a ring by default 64 MiB
_TOO_LARGE: Final = "left out: with it the recording is larger than may be held in memory"


class _At(NamedTuple):
    wall_ns: int
    shard: int
    head: Head


class Recording:
    """One file, or all shards of a folder. A round that several paces have is there once.

    `problems` grows while it is read: what was passed over, with file and offset. What needs more memory than
    `most_bytes` is left out, the oldest shards first: whose node it was is not always who reads it.

    Raises:  ConfigError: nothing of it is a recording. OSError: it cannot be read.
    """

    def __init__(self, path: Path, *, most_bytes: int = MOST_HELD_BYTES) -> None:
        self.path = path
        self._left_bytes = most_bytes
        self.problems: list[str] = []
        self._shards: list[tuple[Path, ShardReader]] = []
        for each in reversed(shards_of(path)):
            self._open(each)
        self._shards.reverse()
        if not self._shards:
            found = self.problems[0] if self.problems else "no shard is there"
            raise ConfigError(str(path), found, "must be a recording of an agent's rounds, or a folder of such")
        self._index = self._places()

    @property
    def shards(self) -> tuple[tuple[Path, ShardReader], ...]:
        """Each shard that can be read."""
        return tuple(self._shards)

    def __len__(self) -> int:
        """Return the number of rounds."""
        return len(self._index)

    @property
    def times_ns(self) -> list[int]:
        """The wall clock of each round, in order."""
        return [each.wall_ns for each in self._index]

    @property
    def decisions(self) -> list[int]:
        """The places of the rounds of which something was carried out, in order."""
        return [place for place, each in enumerate(self._index) if each.head.is_decision]

    def round(self, place: int) -> ReadRound | None:
        """Return the round at a place; None: it cannot be read, and `problems` says why."""
        at = self._index[place]
        path, shard = self._shards[at.shard]
        known = len(shard.damages)
        found = shard.round(at.head)
        self.problems += [f"{path}: {damage}" for damage in shard.damages[known:]]
        return found

    def rounds(self, first: int = 0, last: int | None = None) -> Iterator[ReadRound]:
        """Yield the rounds from a place on that can be read; `last` is not among them."""
        for place in range(first, len(self._index) if last is None else last):
            if (found := self.round(place)) is not None:
                yield found

    def events(self) -> list[RecordedEvent]:
        """Return what happened between rounds, by time, each once."""
        found = [each for _, shard in self._shards for each in shard.events()]
        once = {(each.wall_s, each.kind, str(each.data)): each for each in found}
        return sorted(once.values(), key=lambda each: each.wall_s)

    def samples(self) -> Iterator[NodeSample]:
        """Yield the samples of the node between rounds, shard by shard."""
        for _, shard in self._shards:
            yield from shard.samples()

    def _open(self, path: Path) -> None:
        try:
            data = _bytes_of(path, self._left_bytes)
            index = _bytes_of(index_of(path), self._left_bytes - len(data)) if index_of(path).exists() else b""
            shard = ShardReader(data, index)
            if shard.content.held_bytes > self._left_bytes:
                raise DecodeError(_TOO_LARGE)
            self._left_bytes -= shard.content.held_bytes
        except FileNotFoundError:  # the agent has removed it just now
            return
        except (ConfigError, DecodeError) as error:
            self.problems.append(f"{path}: {error}")
            return
        self.problems += [f"{path}: {damage}" for damage in shard.damages]
        self._shards.append((path, shard))

    # The same round of two paces: that of the pace which also has the samples around it.
    def _places(self) -> list[_At]:
        runs: dict[tuple[str, int], _At] = {}
        order = {Pace.DECISIONS: 0, Pace.ALL: 0, Pace.SECONDS: 1, Pace.DAY: 2}
        numbers = sorted(range(len(self._shards)), key=lambda number: order[self._shards[number][1].header.pace])
        for number in numbers:
            shard = self._shards[number][1]
            for head in shard.rounds:
                runs.setdefault((shard.header.run, head.wall_ns), _At(head.wall_ns, number, head))
        return sorted(runs.values(), key=lambda at: (at.wall_ns, at.shard, at.head.number))


def _bytes_of(path: Path, most_bytes: int) -> bytes:
    with open_to_read(path, follows=True) as file:
        data = read_at_most(file, max(most_bytes, 0) + 1)
    if len(data) > most_bytes:
        raise DecodeError(_TOO_LARGE)
    return data


def shards_of(path: Path) -> list[Path]:
    """Return the file itself, or the shards of a folder and of the folders in it.

    Raises:  OSError: it cannot be read.
    """
    if not path.is_dir():
        return [path]
    found = shards_in(path)
    for below in sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink()):
        found += shards_in(below)
    return found
