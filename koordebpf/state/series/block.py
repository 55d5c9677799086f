"""Samples in a compact form: each is a whole number of steps above the least of its block.

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
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from koordebpf.errors import DecodeError

HEADER: Final = struct.Struct("<IHBdd")
NO_SAMPLE: Final = math.nan
LONGEST: Final = 0xFFFF

_STEPS: Final = {1: 0xFE, 2: 0xFFFE}  # the greatest step; the one above it is a round without a sample
_CODES: Final = {1: "B", 2: "H"}
_SMALL: Final = 1 / 32_768  # of the greatest value: so coarse steps may be


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
