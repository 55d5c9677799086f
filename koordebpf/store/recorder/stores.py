"""Where rounds are put: the ring of an agent, which selects them by pace, or one file that gets them all."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import zstandard
from msgspec.structs import replace

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.degraded import Degraded, reason_of
from koordebpf.store.output_file import READER_S, OutputFile
from koordebpf.store.recorder.ring import RULES, RingFolder, Run
from koordebpf.store.recorder.rounds import EncodedRound
from koordebpf.store.recorder.shard_file import ShardFile, size_on_disk
from koordebpf.store.recorder.values import Pace, RecordedEvent, unpack_samples
from koordebpf.units import MIB, NS_PER_S

AROUND_NS = 30 * NS_PER_S  # before and after a decision
_EVERY_NS = {Pace.SECONDS: NS_PER_S, Pace.DAY: 5 * NS_PER_S}
_EARLY_NS = NS_PER_S // 10  # Why: rounds come each second, give or take some milliseconds
_MAX_BEFORE_BYTES = MIB  # Why: 30 rounds of 110 pods are 160 KiB; as many again where bursts start rounds
log = logging.getLogger("koordebpf")
_RETRY_S = 5.0
_MAX_EVENTS = 2_000  # that wait for a round of their pace
_BUSY = "another agent records this node"


class Kept(NamedTuple):
    """A round, and the pace that keeps it."""

    pace: Pace
    made: EncodedRound


class Selection:
    """Decides for each round. Times are CLOCK_MONOTONIC nanoseconds."""

    def __init__(self) -> None:
        self._due_ns = dict.fromkeys(_EVERY_NS, 0)
        self._around_until_ns = 0
        self._before: deque[EncodedRound] = deque()  # compressed each by itself
        self._before_bytes = 0

    def want_around(self, at_ns: int) -> None:
        """Keep every round around that moment, as around a decision."""
        self._around_until_ns = max(self._around_until_ns, at_ns + AROUND_NS)

    def select(self, made: EncodedRound) -> list[Kept]:
        """Return what is kept now: this round by its paces, and before a decision those that waited for one."""
        if made.is_decision:
            self.want_around(made.mono_ns)
        kept = []
        for pace, every_ns in _EVERY_NS.items():
            due_ns = self._due_ns[pace]
            if made.mono_ns >= due_ns - _EARLY_NS:
                following_ns = due_ns + every_ns
                self._due_ns[pace] = following_ns if following_ns > made.mono_ns else made.mono_ns + every_ns
                kept.append(Kept(pace, made))
        self._drop(made.mono_ns)
        if made.mono_ns <= self._around_until_ns:
            kept += [Kept(Pace.DECISIONS, replace(each, raw=_decompressed(each.raw))) for each in self._before]
            kept.append(Kept(Pace.DECISIONS, made))
            self._before.clear()
            self._before_bytes = 0
        else:
            self._wait(made)
        return kept

    def _wait(self, made: EncodedRound) -> None:
        waiting = replace(made, raw=zstandard.ZstdCompressor(level=1).compress(made.raw))
        self._before.append(waiting)
        self._before_bytes += _bytes(waiting)
        self._drop(made.mono_ns)

    def _drop(self, now_ns: int) -> None:
        while self._before and (self._before[0].mono_ns < now_ns - AROUND_NS or self._before_bytes > _MAX_BEFORE_BYTES):
            self._before_bytes -= _bytes(self._before.popleft())


def _decompressed(raw: bytes) -> bytes:
    whole: bytes = zstandard.ZstdDecompressor().decompress(raw)
    return whole


def _bytes(made: EncodedRound) -> int:
    return len(made.raw) + len(made.samples)


class Place(NamedTuple):
    """A folder that may have a ring, and how many bytes of it."""

    folder: Path
    max_bytes: int


class RingStore:
    """The ring in the first of these places that can be written; it is opened by the thread that writes.

    Args:
        places: the first on a disk, the others in memory.
        run: of this agent.
    """

    def __init__(self, places: Sequence[Place], run: Run) -> None:
        self._places = places
        self._run = run
        self._folder: RingFolder | None = None
        self._retry_s = 0.0
        self._problem = OSError(errno.ENOENT, "no folder for rounds")
        after = [f"rounds are recorded in memory alone, in {each.folder}" for each in places[1:]]
        without = [*after, "rounds are not recorded"]
        self._degraded = [Degraded(each.folder, why) for each, why in zip(places, without, strict=True)]
        self._selection = Selection()
        self._events: dict[Pace, list[RecordedEvent]] = {pace: [] for pace in RULES}

    @property
    def bytes_on_disk(self) -> int:
        """What is on disk."""
        return self._folder.bytes_on_disk if self._folder else 0

    def reach_s(self, wall_ns: int) -> dict[Pace, float]:
        """Return how far back each pace reaches at that time."""
        return self._folder.reach_s(wall_ns) if self._folder else {}

    def want_around(self, at_ns: int) -> None:
        """Keep the rounds around that moment, as around a decision."""
        self._selection.want_around(at_ns)

    def add(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> None:
        """Write a round at its paces.

        Raises:  OSError: at one of them it was not written.
        """
        for pace, waiting in self._events.items():
            self._events[pace] = [*waiting, *events][-_MAX_EVENTS:]
        kept = self._selection.select(made)
        folder, failed = self._opened(), None
        for pace, each in kept:
            samples = samples_raw if each is made or not each.samples else _samples_raw(each.samples)
            try:
                folder.add(pace, each, samples, self._events[pace])
                self._events[pace] = []
            except OSError as error:
                failed = error
        if made.is_decision:
            with contextlib.suppress(OSError):  # what the kernel has survives all but a loss of power
                folder.sync(Pace.DECISIONS)
        if failed:
            raise failed

    def add_events(self, events: Sequence[RecordedEvent], wall_ns: int) -> None:
        """Write the last events.

        Raises:  OSError: they were not written.
        """
        for pace, waiting in self._events.items():
            if self._folder and (left := [*waiting, *events]):
                self._folder.add_events(pace, left, wall_ns)

    def close(self) -> None:
        """Close the ring."""
        if self._folder:
            self._folder.close()

    def _opened(self) -> RingFolder:
        if self._folder is not None:
            return self._folder
        if time.monotonic() < self._retry_s:
            raise self._problem
        self._retry_s = time.monotonic() + _RETRY_S
        for number, place in enumerate(self._places):
            try:
                self._folder = RingFolder(place.folder, self._run, place.max_bytes)
            except BlockingIOError:
                self._problem = OSError(errno.EBUSY, _BUSY)
                break
            except (ConfigError, OSError) as error:
                self._problem = OSError(errno.EIO, f"{place.folder}: {reason_of(error)}")
                self._degraded[number].report(error)
                continue
            self._degraded[number].report(None)
            return self._folder
        raise self._problem


class FileStore:
    """One output that gets every round, until it has so many bytes; `store.output_file` has its rules.

    Killed, it leaves what it has by then. A redacted copy is in its place after `commit`, or not at all.

    Raises:  ConfigError: it cannot be written; names the option.
    """

    def __init__(
        self,
        path: Path,
        run: Run,
        max_bytes: int,
        *,
        redacted: bool = False,
        option: str = "recording",
        reader_s: float = READER_S,
    ) -> None:
        wall_ns = time.time_ns()
        self._max_bytes = max_bytes
        header = replace(run.header(Pace.ALL, wall_ns), redacted=redacted)
        self._output = OutputFile(option, path, reader_s=reader_s)
        try:
            self._shard = ShardFile(path, header, with_samples=True, wall_ns=wall_ns, output=self._output)
        except OSError as error:
            raise self._output.error(error) from error
        if not redacted:
            self.commit()
        self._events: list[RecordedEvent] = []
        self._is_ended = False

    @property
    def bytes_on_disk(self) -> int:
        """What is on disk."""
        return self._shard.bytes

    def reach_s(self, wall_ns: int) -> dict[Pace, float]:
        """Return how far back it reaches at that time."""
        return {Pace.ALL: max(wall_ns - self._shard.made_ns, 0) / NS_PER_S}

    def commit(self) -> None:
        """Put a file in its place.

        Raises:  ConfigError: it cannot be put there.
        """
        self._output.commit()

    def want_around(self, at_ns: int) -> None:
        """Do nothing: every round is kept."""

    def add(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> None:
        """Write a round.

        Raises:  OSError: it was not written, and those after it are not.
        """
        self._events += events
        if self._is_ended:
            raise OSError(errno.EFBIG, "the recording has ended")
        self._write(self._shard.encode(made, samples_raw, self._events))
        self._events.clear()

    def add_events(self, events: Sequence[RecordedEvent], wall_ns: int) -> None:
        """Write the last events.

        Raises:  OSError: they were not written.
        """
        left = [*self._events, *events]
        if left and not self._is_ended:
            self._write(self._shard.encode_events(left, wall_ns))

    def close(self) -> None:
        """Close the file."""
        if not self._is_ended:
            with contextlib.suppress(OSError):
                self._shard.sync()
        self._shard.close()

    # A record that is missing may be what those after it need: the file ends before it.
    def _write(self, records: list[bytes]) -> None:
        try:
            if self._shard.bytes + size_on_disk(records) > self._max_bytes:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            self._shard.write(records)
        except OSError:
            self._is_ended = True
            raise


def _samples_raw(packed: bytes) -> bytes:
    return msgspec.json.encode(unpack_samples(packed))
