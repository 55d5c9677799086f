"""What the plugin counts: calls, how long each took here, errors, connections. One thread writes, others read."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

import msgspec

BUCKETS_MS = (0.01, 0.04, 0.16, 0.64, 2.0, 2.56, 5.0, 10.24, 40.96, 163.84, 2000.0)
"""Upper bounds: koordlet's, 2 and 5 ms as answers may take at most, and the 2 s that a runtime waits."""
_MOST_PROBLEMS = 64  # that wait to be logged. Why: a second's worth; more of a second say nothing new


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
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)

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

    def failed(self, sentence: str) -> None:
        """Count one error. Nothing is logged here: a log may wait."""
        self.errors += 1
        self._problems.append(sentence)

    def take_problems(self) -> tuple[str, ...]:
        """Return the sentences since the last time, once; from another thread."""
        found = []
        while self._problems:
            found.append(self._problems.popleft())
        return tuple(dict.fromkeys(found))
