"""Which rounds are kept at which pace, and those of the last 30 s in memory until a decision wants them. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import zstandard
from msgspec.structs import replace

from koordebpf.store.recorder.rounds import EncodedRound
from koordebpf.store.recorder.values import Pace
from koordebpf.units import MIB, NS_PER_S

AROUND_NS = 30 * NS_PER_S  # before and after a decision
_EVERY_NS = {Pace.SECONDS: NS_PER_S, Pace.DAY: 5 * NS_PER_S}
_EARLY_NS = NS_PER_S // 10  # Why: rounds come each second, give or take some milliseconds
_MAX_BEFORE_BYTES = MIB  # Why: 30 rounds of 110 pods are 160 KiB; as many again where bursts start rounds


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

    def take(self, made: EncodedRound) -> list[Kept]:
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
