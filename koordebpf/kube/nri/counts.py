"""What the plugin counts: calls, how long each took here, errors, connections. One thread writes, others read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import msgspec

BUCKETS_MS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 1000.0)
"""Upper bounds. Why: 2 and 5 ms are what answers may take, and a runtime waits for 2 s."""
_MOST_SENTENCES = 64  # which were logged once; then the first of new ones only


class Calls(msgspec.Struct, frozen=True, gc=False):
    """Calls of one method with one result: how many in each bucket (the last has no bound), and their sum."""

    buckets: tuple[int, ...] = (0,) * (len(BUCKETS_MS) + 1)
    sum_ms: float = 0.0


class NriCounts:
    """Counters of one plugin since its start. Values are replaced as a whole."""

    def __init__(self) -> None:
        self.registrations = 0  # that a runtime has completed
        self.adjusted = 0  # containers whose resources were adjusted
        self.errors = 0
        self._calls: dict[tuple[str, bool], Calls] = {}
        self._logged: set[str] = set()

    @property
    def calls(self) -> Mapping[tuple[str, bool], Calls]:
        """Calls by method and whether they succeeded."""
        return self._calls.copy()

    def took(self, method: str, took_ms: float, *, is_ok: bool) -> None:
        """Count one call."""
        before = self._calls.get((method, is_ok), Calls())
        at = bisect_left(BUCKETS_MS, took_ms)
        buckets = (*before.buckets[:at], before.buckets[at] + 1, *before.buckets[at + 1 :])
        self._calls[method, is_ok] = Calls(buckets, before.sum_ms + took_ms)

    def failed(self, sentence: str) -> bool:
        """Count one error; tell whether its sentence is to be logged."""
        self.errors += 1
        if sentence in self._logged or len(self._logged) >= _MOST_SENTENCES:
            return False
        self._logged.add(sentence)
        return True
