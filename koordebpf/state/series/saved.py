"""Rounds and blocks out of a snapshot, put before those of a store."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from math import isnan

from koordebpf.state.series.block import checked_rounds, decode_block, encode_block, moved
from koordebpf.state.series.lane import Lane
from koordebpf.state.series.records import SavedRounds, SavedSeries

_TIME_BYTES = array("q").itemsize
_LAST_ROUND = 0xFFFF_FFFF


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
