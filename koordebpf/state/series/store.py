"""Every series of a node, each under its key: what koordlet calls its metric cache, in memory and bounded."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import isnan
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from koordebpf.errors import DecodeError
from koordebpf.state.series.aggregate import Aggregated, Aggregation, aggregate, aggregated
from koordebpf.state.series.block import (
    BLOCK_OVERHEAD_BYTES,
    BLOCK_ROUNDS,
    Lane,
    Series,
    Window,
    checked_rounds,
    decode_block,
    encode_block,
    moved,
    rounds_of,
)
from koordebpf.state.series.kinds import KINDS, SavedRounds, SavedSeries, SeriesKey
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S

_TIME_BYTES = array("q").itemsize
_LAST_ROUND = 0xFFFF_FFFF
# What a series needs before its first block: its key, itself, and the samples that are not encoded yet.
SERIES_BYTES: Final = 700 + 8 * BLOCK_ROUNDS
_GREATEST: Final = 1e300  # Why: sums of a window stay finite
_LOOK_NS: Final = 60 * NS_PER_S  # between two looks for series that have ended
_ROOM_EVERY_NS: Final = NS_PER_S  # between two looks for ended series. Why: a look takes 1 ms
_ROOM_SERIES: Final = 64  # are dropped then, if so many have ended, or an eighth of all that have
_ENDED_ROUNDS: Final = 8  # without a sample: a series has probably ended, and makes room where there is none
_OF_TENANTS: Final = ("pod_", "container_", "host_application_")  # kinds of series that tenants make
_NONE: Final[Mapping[str, str]] = {}
NODE = ""  # the entity of the node itself in keys that are not koordlet's; no pod has an empty uid
EVERY_NS = NS_PER_S  # koordlet's interval of collecting
LONGEST_NS = 600 * NS_PER_S  # Why: what took longer is no reaction


class SeriesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the series of usage, and how they outlast a restart.

    `keep_ns`         how old a sample may get. Why 30 minutes: the longest window of a NodeMetric.
    `budget_bytes`    memory of all series of pods, containers and host applications; beyond it their oldest samples are
                      dropped. Why 16 MiB: 110 pods with 330 containers need 8 MiB for 30 minutes of CPU, memory and
                      throttling, 500 pods with 1,000 containers get 15 minutes of them.
    `snapshot_ns`     between two snapshots in the agent's folder below runDir, from which a restarted agent continues;
                      one more is written when the agent stops. Why 5 minutes: so much is lost when it is killed.
    """

    keep_ns: Annotated[int, Meta(ge=NS_PER_S, le=24 * 3600 * NS_PER_S)] = 1800 * NS_PER_S
    budget_bytes: Annotated[int, Meta(ge=MIB)] = 16 * MIB
    snapshot_ns: Annotated[int, Meta(ge=NS_PER_S)] = 300 * NS_PER_S


class SavedLane:
    """Rounds of a kind out of a snapshot, put before those that a lane has.

    Samples of the lane's own time are none of them: the agent that saved them may have sampled beside this agent.

    Raises:  ValueError: the rounds are no times that ascend, or end later than now.
    """

    def __init__(self, saved: SavedRounds, lane: Lane, now_ns: int) -> None:
        if len(saved.times) % _TIME_BYTES or not 0 <= saved.base <= _LAST_ROUND - len(saved.times):
            raise ValueError(f"rounds of {saved.kind} have another layout")
        times_ns = array("q")
        times_ns.frombytes(saved.times)
        if any(later <= earlier for earlier, later in pairwise(times_ns)):
            raise ValueError(f"rounds of {saved.kind} do not ascend")
        if times_ns and (times_ns[-1] > now_ns or times_ns[0] < 0):
            raise ValueError(f"rounds of {saved.kind} are of another time")
        self._base = saved.base
        self._lane = lane
        self._rounds = lane.prepend(saved.base, times_ns)
        self._shift = lane.base - saved.base

    def blocks_of(self, saved: SavedSeries) -> list[bytes]:
        """Return the blocks that are of rounds which were put before, numbered as the lane's.

        Raises:  DecodeError, ValueError: a block has another layout, or is of no such round.
        """
        found, before, end = [], 0, self._base + self._rounds
        for block in saved.blocks:
            begin, count = checked_rounds(block)
            if begin < before:
                raise ValueError(f"blocks of {saved.key!r} do not ascend")
            before = begin + count
            if before <= self._base or begin >= end:
                continue
            kept = block if before <= end else _cut(block, end - begin)
            if kept:
                found.append(moved(kept, self._shift) if self._shift else kept)
        return found


def saved_rounds(lanes: Iterable[Lane]) -> tuple[SavedRounds, ...]:
    """Return the rounds of every kind."""
    return tuple(SavedRounds(lane.kind, lane.base, lane.times_ns.tobytes()) for lane in lanes)


# The first rounds of a block; empty where none of them has a sample.
def _cut(block: bytes, rounds: int) -> bytes:
    values = decode_block(block)[:rounds]
    while values and isnan(values[-1]):
        values.pop()
    return encode_block(checked_rounds(block)[0], values) if values else b""


class SeriesCounts(msgspec.Struct, frozen=True):
    """What a store holds and what it had no room for, since it was made."""

    series: int
    bytes: int
    dropped_samples: int  # younger than the window: the budget was full
    dropped_series: int  # of what ended less than a window ago: too many others began
    refused_samples: int  # of keys for which there was no room, or no finite numbers


class SeriesStore:
    """Samples of many series over a window; `t_ns` is CLOCK_MONOTONIC.

    Append the samples of one moment together with `append_round`: all series of a kind share the times of their
    rounds. Within a kind time never runs backwards: a sample older than the newest round of its kind is dropped.

    Bounds: series of pods, containers and host applications share `budget_bytes`. Where a new series finds no room,
    series that have ended are dropped, the shortest first: who creates containers in a loop drops the series of those.
    Where samples find none, the oldest samples of all these series are dropped. Others, of the node itself, are never.

    Cost:    0.5 µs a sample; 3 bytes a sample that changes, 1 where it does not; 1.2 KB a series.
    """

    def __init__(self, settings: SeriesSettings = SeriesSettings(), *, apart_ns: int = 1) -> None:  # noqa: B008
        """Start empty.

        Args:
            settings: the bounds.
            apart_ns: a sample that comes sooner after the last kept one of its key is dropped.
        """
        self._settings = settings
        self._apart_ns = apart_ns
        self._next_look_ns = 0
        self._series: dict[SeriesKey, Series] = {}
        self._lanes: dict[str, Lane] = {}
        self._blocks: deque[Series] = deque()  # a place for each block, the one first encoded at the left
        self._own_blocks: deque[Series] = deque()  # the same of the node itself
        self._bytes = 0
        self._look_at_ns = 0
        self._expired_ns = -1
        self._dropped = [0, 0, 0]  # samples, series, refused samples
        self.changes = 0  # odd while a round is appended: who reads from another thread looks before and after

    def __len__(self) -> int:
        return len(self._series)

    def __contains__(self, key: SeriesKey) -> bool:
        return key in self._series

    @property
    def _most(self) -> int:
        return max(self._settings.budget_bytes // (2 * SERIES_BYTES), 1)

    @property
    def counts(self) -> SeriesCounts:
        """What it holds."""
        return SeriesCounts(len(self._series), self._bytes, *self._dropped)

    def append(self, key: SeriesKey, t_ns: int, value: float) -> bool:
        """Append one sample; return whether it was kept.

        Raises:  ValueError: a kind of koordlet's with another number of properties.
        """
        return self.append_round(t_ns, {key: value}) == 1

    def append_round(self, t_ns: int, values: Mapping[SeriesKey, float]) -> int:
        """Append what was measured at one moment, of one kind or several; return how many were kept.

        Raises:  ValueError: a kind of koordlet's with another number of properties.
        """
        self.changes += 1
        try:
            kept = self._append(t_ns, values)
            if t_ns > self._expired_ns or self._bytes > self._settings.budget_bytes:
                self._expired_ns = t_ns
                self._expire(t_ns)
        finally:
            self.changes += 1
        return kept

    def query(self, key: SeriesKey, now_ns: int, window_ns: int, aggregation: Aggregation) -> float | None:
        """Return what the samples within `window_ns` before `now_ns` say; the window's begin is no part of it.

        None: there are none. Where they are counted that is 0.
        """
        return aggregate(self.window(key, now_ns, window_ns).values, aggregation)

    def window(self, key: SeriesKey, now_ns: int, window_ns: int) -> Window:
        """Return the samples within `window_ns` before `now_ns`."""
        series = self._series.get(key)
        return Window([]) if series is None else series.window(series.lane.first_after(now_ns - window_ns))

    def aggregated(self, key: SeriesKey, now_ns: int, window_ns: int) -> Aggregated | None:
        """Return every aggregation of the window. None: its samples span less than half of it, or there are none."""
        window = self.window(key, now_ns, window_ns)
        span_ns = window.last_ns - window.first_ns
        return aggregated(window.values, span_ns) if window.values and 2 * span_ns >= window_ns else None

    def keys(self, kind: str, properties: Mapping[str, str] = _NONE) -> list[SeriesKey]:
        """Return the keys of a kind of which the given properties have these values; none given: all of the kind.

        Raises:  ValueError: the kind has no such property.
        """
        if not properties:
            return [key for key in self._series.copy() if key[0] == kind]
        names = KINDS.get(kind, ())
        if unknown := properties.keys() - set(names):
            known = ", ".join(names) or "none"
            raise ValueError(f"{kind} has no property {', '.join(sorted(unknown))}; it has: {known}")
        wanted = [(names.index(name) + 1, value) for name, value in properties.items()]
        return [
            key for key in self._series.copy() if key[0] == kind and all(key[place] == value for place, value in wanted)
        ]

    def kinds(self) -> dict[str, int]:
        """Return how many series there are of each kind."""
        found: dict[str, int] = {}
        for key in self._series.copy():
            found[key[0]] = found.get(key[0], 0) + 1
        return found

    def saved_rounds(self) -> tuple[SavedRounds, ...]:
        """Return the rounds of every kind, as they can be written down."""
        return saved_rounds(self._lanes.values())

    def saved(self, keys: Iterable[SeriesKey]) -> list[SavedSeries]:
        """Return the series of these keys, as they can be written down. Cost: 10 µs each."""
        return [series.saved() for key in keys if (series := self._series.get(key)) is not None]

    def restore(
        self, rounds: Iterable[SavedRounds], saved: Iterable[SavedSeries], now_ns: int
    ) -> tuple[int, list[str]]:
        """Put what was saved before the store's own samples; return of how many series, and what could not be used.

        Both clocks are CLOCK_MONOTONIC of one boot. Samples that this store has none of are taken, older ones than its
        window are not.
        """
        lanes: dict[str, SavedLane] = {}
        problems: list[str] = []
        for each in rounds:
            try:
                lanes[each.kind] = SavedLane(each, self._lane((each.kind, *KINDS.get(each.kind, ()))), now_ns)
            except ValueError as error:
                problems.append(str(error))
        restored = 0
        try:
            for one in saved:
                try:
                    if (lane := lanes.get(one.key[0])) is not None and (blocks := lane.blocks_of(one)):
                        restored += self._prepend(one.key, blocks)
                except (DecodeError, IndexError, ValueError) as error:
                    problems.append(f"a series: {error}")
        finally:
            self._order_blocks()
        self._expire(now_ns)
        return restored, problems

    def _prepend(self, key: SeriesKey, blocks: Sequence[bytes]) -> int:
        lane = self._lane(key)
        series = self._series.get(key)
        if series is None:
            if lane.is_bounded and len(self._series) >= self._most:
                self._dropped[1] += 1
                return 0
            series = self._series[key] = Series(key, lane, len(self._series) % BLOCK_ROUNDS)
            self._bytes += SERIES_BYTES if lane.is_bounded else 0
        series.prepend(blocks)
        if lane.is_bounded:
            self._bytes += sum(map(len, blocks)) + BLOCK_OVERHEAD_BYTES * len(blocks)
        return 1

    # A place for each block, by the age of their ends.
    def _order_blocks(self) -> None:
        ends = [
            (series.lane.at(sum(rounds_of(block)) - 1), series)
            for series in self._series.values()
            for block in series.blocks
        ]
        ends.sort(key=lambda end: end[0])
        self._own_blocks = deque(series for _, series in ends if not series.lane.is_bounded)
        self._blocks = deque(series for _, series in ends if series.lane.is_bounded)

    def _append(self, t_ns: int, values: Mapping[SeriesKey, float]) -> int:
        kept, get = 0, self._series.get
        for key, value in values.items():
            series = get(key) or self._new(key, t_ns)
            if series is None or not -_GREATEST < value < _GREATEST:
                self._dropped[2] += 1
                continue
            lane = series.lane
            if lane.last_ns != t_ns and not lane.start(t_ns, self._apart_ns):
                continue
            if series.end == lane.number and not lane.is_sparse:
                series.newest.append(value)
                series.end += 1
                if series.end >= series.encode_at:
                    self._encoded(series, series.encode())
            elif series.end > lane.number or (
                (series.newest or series.blocks) and t_ns - series.last_ns < self._apart_ns
            ):
                continue
            elif block := series.append_late(value):
                self._encoded(series, block)
            kept += 1
        return kept

    def _new(self, key: SeriesKey, t_ns: int) -> Series | None:
        lane = self._lane(key)
        if lane.last_ns < t_ns:
            lane.start(t_ns, self._apart_ns)
        elif lane.last_ns > t_ns:
            return None
        if lane.is_bounded and len(self._series) >= self._most and not self._drop_ended(t_ns):
            return None
        series = self._series[key] = Series(key, lane, len(self._series) % BLOCK_ROUNDS)
        self._bytes += SERIES_BYTES if lane.is_bounded else 0
        return series

    def _lane(self, key: SeriesKey) -> Lane:
        kind = key[0]
        names = KINDS.get(kind)
        if names is not None and len(key) != len(names) + 1:
            raise ValueError(f"{key!r}: {kind} has the properties {', '.join(names) or 'none'}")
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = Lane(kind, is_bounded=kind.startswith(_OF_TENANTS))
        return lane

    def _encoded(self, series: Series, block: bytes) -> None:
        if series.lane.is_bounded:
            self._blocks.append(series)
            self._bytes += len(block) + BLOCK_OVERHEAD_BYTES
        else:
            self._own_blocks.append(series)

    # Drops what is older than the window, and what is beyond the budget.
    def _expire(self, t_ns: int) -> None:
        before_ns, budget = t_ns - self._settings.keep_ns, self._settings.budget_bytes
        while self._own_blocks and self._is_over(self._own_blocks[0], before_ns):
            self._drop_block(self._own_blocks.popleft())
        while self._blocks and self._is_over(self._blocks[0], before_ns):
            self._drop_block(self._blocks.popleft())
        while self._blocks and self._bytes > budget:
            self._dropped[0] += self._drop_block(self._blocks.popleft())
        if t_ns >= self._look_at_ns:
            self._look_at_ns = t_ns + _LOOK_NS
            for series in [each for each in self._series.values() if each.last_ns < before_ns]:
                self._drop(series)
            for lane in self._lanes.values():
                lane.forget(before_ns)

    def _is_over(self, series: Series, before_ns: int) -> bool:
        if not series.blocks:
            return True
        begin, count = rounds_of(series.blocks[0])
        return series.lane.at(begin + count - 1) < before_ns

    def _drop_block(self, series: Series) -> int:
        if not series.blocks:
            return 0  # the series was dropped before
        block = series.blocks.pop(0)
        self._bytes -= len(block) + BLOCK_OVERHEAD_BYTES if series.lane.is_bounded else 0
        return rounds_of(block)[1]

    def _drop(self, series: Series) -> None:
        del self._series[series.key]
        while series.blocks:
            self._drop_block(series)
        self._bytes -= SERIES_BYTES if series.lane.is_bounded else 0

    # Drops the shortest of the series that have ended. Cost: 5 µs for each of them, at most once a second.
    def _drop_ended(self, t_ns: int) -> bool:
        if t_ns < self._next_look_ns:
            return False
        self._next_look_ns = t_ns + _ROOM_EVERY_NS
        ended = self._ended()
        ended.sort(key=Series.count)
        for series in ended[: max(len(ended) // 8, _ROOM_SERIES)]:
            self._drop(series)
            self._dropped[1] += 1
        return bool(ended)

    def _ended(self) -> list[Series]:
        return [
            each
            for each in self._series.values()
            if each.lane.is_bounded and each.lane.number - each.end >= _ENDED_ROUNDS
        ]


NodeSeries = SeriesStore


def node_series(settings: SeriesSettings | None = None) -> NodeSeries:
    """Return an empty store. A wake-up some milliseconds early must not halve the pace."""
    return SeriesStore(settings or SeriesSettings(), apart_ns=EVERY_NS - 50 * NS_PER_MS)
