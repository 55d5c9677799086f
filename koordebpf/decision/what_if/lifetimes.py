"""How long pods that were evicted would have stayed, by those that ended by themselves. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection

_MOST = 512  # pods that ended. Why: the last ones tell what runs now, and a median needs no more


class Lifetimes:
    """Ages of the pods of one node, from the first round that shows them. Give it the rounds in order of time."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        self._first: frozenset[str] | None = None  # pods of the first round: how old they were is not known
        self._ended: deque[int] = deque()
        self._sorted: list[int] = []
        self._now_ns = 0

    def look(self, now_ns: int, uids: Collection[str], evicted: Collection[str]) -> None:
        """Take one round: the pods that there are, and those that were evicted lately."""
        if self._first is None or now_ns < self._now_ns:
            self._first, self._since_ns = frozenset(uids), {}
        self._now_ns = now_ns
        if self._since_ns.keys() == uids:
            return
        for uid in self._since_ns.keys() - uids:
            since_ns = self._since_ns.pop(uid)
            if uid not in self._first and uid not in evicted:
                self._add(now_ns - since_ns)
        for uid in uids:
            self._since_ns.setdefault(uid, now_ns)

    def left_ns(self, age_ns: int) -> int | None:
        """Return how much longer a pod of this age stays: the median of those that grew older. None: none did."""
        older = self._sorted[bisect_right(self._sorted, age_ns) :]
        return older[len(older) // 2] - age_ns if older else None

    def _add(self, life_ns: int) -> None:
        if len(self._ended) >= _MOST:
            self._sorted.remove(self._ended.popleft())
        self._ended.append(life_ns)
        insort(self._sorted, life_ns)
