"""A store's series as values that can be written down.

What is saved of a series are its blocks, with the newest samples as one more. The times of their rounds are saved once
for each kind.
"""

from __future__ import annotations

import msgspec


class SavedSeries(msgspec.Struct, frozen=True, array_like=True):
    """One series; the oldest block is the first."""

    key: tuple[str, ...]
    blocks: tuple[bytes, ...]


class SavedRounds(msgspec.Struct, frozen=True, array_like=True):
    """The rounds of one kind: the number of the first, and when each was (CLOCK_MONOTONIC ns, 8 bytes each)."""

    kind: str
    base: int
    times: bytes
