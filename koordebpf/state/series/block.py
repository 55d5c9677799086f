"""Samples in a compact form, and the rounds that all series of a kind share. Of a block each sample is whole steps.

Whole numbers, as bytes and millicores, are kept exactly where their block has at most 65,535 steps between its least
and its greatest; the step is the greatest that divides all differences, for memory the page size. Other values, as
CPU in cores, are off by at most 1/131,068 of the difference between the greatest and the least of their block, or by
1/65,536 of the greatest where one byte a sample is enough for that.

Shape:   `<IHBdd`: number of the first round, count, bytes a sample, least value, step; then the samples. 0 bytes a
         sample: all have the least value. The greatest code stands for a round without a sample.
Cost:    23 bytes and 0, 1 or 2 a sample; 0.15 µs a sample to encode, 0.04 µs to decode.
"""

from __future__ import annotations

import math
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import Final

import msgspec

from koordebpf.errors import DecodeError
from koordebpf.state.series.kinds import SavedSeries, SeriesKey

HEADER: Final = struct.Struct("<IHBdd")
NO_SAMPLE: Final = math.nan
LONGEST: Final = 0xFFFF
_STEPS: Final = {1: 0xFE, 2: 0xFFFE}  # the greatest step; the one above it is a round without a sample
_CODES: Final = {1: "B", 2: "H"}
_SMALL: Final = 1 / 32_768  # of the greatest value: so coarse steps may be
# Why 64: longer blocks cost less for each sample once they are encoded, but so many samples of each series are not.
BLOCK_ROUNDS: Final = 64
FIRST_ROUND: Final = 1 << 24  # rounds of an agent before this one are numbered below
_MOST_HOLES: Final = BLOCK_ROUNDS // 2
BLOCK_OVERHEAD_BYTES: Final = 33 + 16 + HEADER.size  # a bytes object's own, and a place in two lists


def encode_block(first_round: int, values: Sequence[float]) -> bytes:
    """Encode one value a round, `NO_SAMPLE` where there is none; at least one is a number.

    Raises:  ValueError: none is, or there are more than 65,535.
    """
    known = [value for value in values if not math.isnan(value)] if math.isnan(sum(values)) else values
    least, greatest = min(known), max(known)
    if len(values) > LONGEST:
        raise ValueError(f"{len(values)} values are more than {LONGEST}")
    if least == greatest and known is values:
        return HEADER.pack(first_round, len(values), 0, least, 0.0)
    above = [value - least for value in known]
    width, step = _steps(above, max(abs(least), abs(greatest)))
    found = array(_CODES[width], [int(each / step + 0.5) for each in above])
    codes = found if known is values else array(_CODES[width], _with_holes(values, found, _STEPS[width] + 1))
    return HEADER.pack(first_round, len(values), width, least, step) + codes.tobytes()


def rounds_of(block: bytes) -> tuple[int, int]:
    """Return the number of a block's first round and how many rounds it has."""
    first_round, count, _, _, _ = HEADER.unpack_from(block)
    return first_round, count


def moved(block: bytes, by_rounds: int) -> bytes:
    """Return the block with every round's number changed by so many."""
    first_round, *rest = HEADER.unpack_from(block)
    return HEADER.pack(first_round + by_rounds, *rest) + block[HEADER.size :]


def checked_rounds(block: bytes) -> tuple[int, int]:
    """Return the same of a block that was read.

    Raises:  DecodeError: it is shorter or longer than its header says, has no round or another width.
    """
    try:
        first_round, count, width, _, _ = HEADER.unpack_from(block)
    except struct.error as error:
        raise DecodeError(f"a block of {len(block)} bytes: {error}") from error
    if width not in (0, 1, 2) or not count or len(block) != HEADER.size + count * width:
        raise DecodeError(f"a block of {len(block)} bytes says that it has {count} samples of {width} bytes")
    return first_round, count


def decode_block(block: bytes) -> list[float]:
    """Return one value a round, `NO_SAMPLE` where there is none.

    Raises:  DecodeError: as `checked_rounds`.
    """
    checked_rounds(block)
    _, count, width, least, step = HEADER.unpack_from(block)
    if width == 0:
        return [least] * count
    codes = array(_CODES[width])
    codes.frombytes(memoryview(block)[HEADER.size :])
    hole = _STEPS[width] + 1
    if hole in codes:
        return [least + code * step if code != hole else NO_SAMPLE for code in codes]
    return [least + code * step for code in codes]


def _with_holes(values: Sequence[float], codes: Iterable[int], hole: int) -> Iterator[int]:
    left = iter(codes)
    for value in values:
        yield hole if math.isnan(value) else next(left)


# Bytes a sample and the step between two of its codes.
def _steps(above: Sequence[float], greatest: float) -> tuple[int, float]:
    reach = max(above)
    if all(map(float.is_integer, above)):
        step = math.gcd(*map(int, above)) or 1
        for width, steps in _STEPS.items():
            if reach <= step * steps:
                return width, float(step)
    if reach <= _SMALL * _STEPS[1] * greatest:
        return 1, reach / _STEPS[1] or 1.0
    return 2, reach / _STEPS[2] or 1.0


class Window(msgspec.Struct, frozen=True, gc=False):
    """Samples in the order of their time; first and last are when the oldest and the newest was, 0 without any."""

    values: list[float]
    first_ns: int = 0
    last_ns: int = 0


class Lane:
    """When each round of a kind was; rounds are numbered."""

    __slots__ = ("base", "is_bounded", "is_sparse", "kind", "last_ns", "number", "times_ns")

    def __init__(self, kind: str, *, is_bounded: bool) -> None:
        """Begin without a round. `is_bounded`: tenants make its series, so that they share the budget."""
        self.kind = kind
        self.is_bounded = is_bounded
        self.base = FIRST_ROUND  # the number of the oldest round that is kept
        self.number = FIRST_ROUND - 1  # of the newest round
        self.last_ns = -1  # when that was
        self.is_sparse = False  # the newest round came sooner than usual after the one before it
        self.times_ns = array("q")

    def start(self, t_ns: int, apart_ns: int) -> bool:
        """Start a round; return False where the newest one is not older."""
        if t_ns <= self.last_ns:
            return False
        self.is_sparse = self.last_ns >= 0 and t_ns - self.last_ns < apart_ns
        self.times_ns.append(t_ns)
        self.last_ns = t_ns
        self.number += 1
        return True

    def at(self, number: int) -> int:
        """Return when a round was that is kept; of an older one, when the oldest was that is."""
        return self.times_ns[max(number - self.base, 0)]

    def first_after(self, since_ns: int) -> int:
        """Return the number of the first round that is newer."""
        return self.base + bisect_right(self.times_ns, since_ns)

    def prepend(self, base: int, times_ns: array[int]) -> int:
        """Put rounds before those that are there, as far as they are older; return how many were.

        `base` is the number of the first of them, which they keep where there is no other.
        """
        if self.times_ns:
            older = bisect_left(times_ns, self.times_ns[0])
            self.times_ns = times_ns[:older] + self.times_ns
            self.base -= older
            return older
        if times_ns:
            self.times_ns, self.base, self.last_ns = times_ns, base, times_ns[-1]
            self.number = base + len(times_ns) - 1
        return len(times_ns)

    def forget(self, before_ns: int) -> None:
        """Forget older rounds, but the newest."""
        old = min(bisect_right(self.times_ns, before_ns), len(self.times_ns) - 1)
        if old >= BLOCK_ROUNDS:
            self.times_ns = self.times_ns[old:]
            self.base += old


class Series:
    """The samples of one key: encoded blocks, and after them those of the newest rounds as they are."""

    __slots__ = ("blocks", "encode_at", "end", "key", "lane", "newest")

    def __init__(self, key: SeriesKey, lane: Lane, stagger: int) -> None:
        """Begin with the lane's newest round. `stagger` keeps series that begin together from encoding together."""
        self.key = key
        self.lane = lane
        self.blocks: list[bytes] = []
        self.newest = array("d")  # one for each round before `end`, NO_SAMPLE where there is none
        self.end = lane.number  # the number of the round after the last sample
        self.encode_at = self.end + BLOCK_ROUNDS + stagger

    @property
    def last_ns(self) -> int:
        """When the newest sample was."""
        return self.lane.at(self.end - 1)

    def append_late(self, value: float) -> bytes | None:
        """Append a value of the lane's newest round after rounds without one; return the block where that fills one."""
        holes = self.lane.number - self.end
        block = None
        if self.newest and holes > _MOST_HOLES:
            block = self.encode()
        elif self.newest:
            self.newest.extend([NO_SAMPLE] * holes)
        self.newest.append(value)
        self.end = self.lane.number + 1
        return block

    def encode(self) -> bytes:
        """Move the newest samples into a block."""
        block = encode_block(self.end - len(self.newest), self.newest)
        self.blocks.append(block)
        self.newest = array("d")
        self.encode_at = self.lane.number + 1 + BLOCK_ROUNDS
        return block

    def prepend(self, blocks: Sequence[bytes]) -> None:
        """Put blocks of older rounds before those that are there."""
        if not (self.blocks or self.newest):
            begin, count = rounds_of(blocks[-1])
            self.end = begin + count
            self.encode_at += self.end - self.lane.number
        self.blocks[:0] = blocks

    def saved(self) -> SavedSeries:
        """Return it as it can be written down."""
        newest = (encode_block(self.end - len(self.newest), self.newest),) if self.newest else ()
        return SavedSeries(self.key, (*self.blocks, *newest))

    def window(self, first_round: int) -> Window:
        """Return the samples of this round and of those after it."""
        if self.end <= first_round:
            return Window([])
        start = self.end - len(self.newest)
        parts: list[tuple[int, Iterable[float]]] = []
        if first_round < start:
            for block in reversed(self.blocks):
                begin, count = rounds_of(block)
                if begin + count <= first_round:
                    break
                parts.append(_cut(begin, decode_block(block), first_round))
            parts.reverse()
        parts.append(_cut(start, self.newest, first_round))
        return self._known(parts)

    def count(self) -> int:
        """Return for how many rounds there is a place, used or not."""
        return len(self.newest) + sum(rounds_of(block)[1] for block in self.blocks)

    def _known(self, parts: list[tuple[int, Iterable[float]]]) -> Window:
        values: list[float] = []
        first = -1
        for begin, part in parts:
            before = len(values)
            values.extend(part)
            if first < 0 and len(values) > before:
                first = begin
        if not values:
            return Window([])
        if isnan(sum(values)):  # a part ends with a sample: the first one is in the first part
            first += next(index for index, value in enumerate(values) if not isnan(value))
            values = [value for value in values if not isnan(value)]
        return Window(values, self.lane.at(first), self.last_ns)


def _cut(begin: int, values: array[float] | list[float], first_round: int) -> tuple[int, Iterable[float]]:
    return (begin, values) if begin >= first_round else (first_round, values[first_round - begin :])
