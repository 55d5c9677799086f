"""Many series, each under its key: what koordlet calls its metric cache, in memory and bounded."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from koordebpf.state.series.ring import Aggregation, Series

Key = TypeVar("Key", bound=Hashable)


class SeriesStore(Generic[Key]):
    """One bounded ring for each key, as (metric, entity).

    Its size is at most `length` × `most` × 16 bytes, whatever the pace of who appends and however many keys there are.
    """

    def __init__(self, length: int, keep_ns: int, *, apart_ns: int = 1, most: int = 4096) -> None:
        """Start empty.

        Args:
            length: samples of a key, at most.
            keep_ns: a series whose newest sample is older is dropped once there is a new key: it is of what is gone.
            apart_ns: a sample that comes sooner after the last kept one of its key is dropped.
            most: keys; what is appended to another one is dropped.
        """
        self._length = length
        self._keep_ns = keep_ns
        self._apart_ns = apart_ns
        self._most = most
        self._series: dict[Key, Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def append(self, key: Key, t_ns: int, value: float) -> bool:
        """Append a sample at `t_ns`; return whether it was kept."""
        series = self._series.get(key)
        if series is None:
            self._drop_ended(t_ns)
            if len(self._series) >= self._most:
                return False
            series = self._series[key] = Series(self._length)
        return series.append(t_ns, value, self._apart_ns)

    def query(self, key: Key, now_ns: int, window_ns: int, aggregation: Aggregation) -> float | None:
        """Return what the samples within `window_ns` before `now_ns` say; the window's begin is no part of it.

        None: there are none. Where they are counted that is 0.
        """
        series = self._series.get(key)
        if series is None:
            return 0 if aggregation == "count" else None
        return series.query(now_ns - window_ns, aggregation)

    # Cost:    0.1 µs a series.
    def _drop_ended(self, now_ns: int) -> None:
        for key in [key for key, each in self._series.items() if each.last_ns < now_ns - self._keep_ns]:
            del self._series[key]
