"""How long latency-sensitive pods stalled at each level of the node's use, as a recording has it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec


class Expected(msgspec.Struct, frozen=True):
    """The stalls that a curve expects. `unseen_ns`: so much of the time was at a level that was never seen."""

    stall_ns: int
    unseen_ns: int


class StallCurve:
    """Time and stalls by whole percents of the node's use, in the interval that ends at each round."""

    def __init__(self) -> None:
        self._passed_ns: Counter[int] = Counter()
        self._stall_ns: Counter[int] = Counter()

    def add(self, percent: int, passed_ns: int, stall_ns: int) -> None:
        """Take one interval in which the node used `percent`."""
        self._passed_ns[percent] += passed_ns
        self._stall_ns[percent] += stall_ns

    def expected(self, passed_ns: Mapping[int, int]) -> Expected:
        """Return the stalls of a node that spent so long at each percent.

        At a level that was seen it stalls as much of the time as was seen; at another one as at the nearest level that
        was. The time that was recorded gives the stalls that were recorded.
        """
        seen = [percent for percent, time_ns in self._passed_ns.items() if time_ns]
        if not seen:
            return Expected(0, sum(passed_ns.values()))
        stall, unseen_ns = 0.0, 0
        for percent, time_ns in passed_ns.items():
            near = percent
            if not self._passed_ns.get(percent):
                near = min(seen, key=lambda each: (abs(each - percent), each))
                unseen_ns += time_ns
            stall += time_ns * self._stall_ns[near] / self._passed_ns[near]
        return Expected(round(stall), unseen_ns)
