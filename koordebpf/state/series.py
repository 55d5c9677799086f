"""Short memories of single numbers, and how soon to look again."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, TypeVar

from koordebpf.units import GIB, NS_PER_MS, NS_PER_S

# Why: one core faults in and clears 2.5 to 3 GiB/s of anonymous memory.
GROWTH_PER_CPU_BYTES_PER_S = 3 * GIB

_NEAR_FLOORS = 8  # Why: with a floor of 4 ms the last 32 ms before a crossing are watched closely, a transient cost

Key = TypeVar("Key", bound=Hashable)


class Series:
    """The last `length` samples of one number, in time order.

    Cost: 0.3 µs a push; 16 bytes a sample.
    """

    __slots__ = ("_count", "_next", "_times_ns", "_values")

    def __init__(self, length: int = 16) -> None:
        if length < 2:
            raise ValueError("a series needs room for two samples")
        self._times_ns = array("q", bytes(8 * length))
        self._values = array("d", bytes(8 * length))
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, float]]:
        length = len(self._values)
        for step in range(self._count):
            at = (self._next - self._count + step) % length
            yield self._times_ns[at], self._values[at]

    def push(self, now_ns: int, value: float) -> None:
        """Append a sample; one that is not newer than the last is dropped."""
        if self._count and now_ns <= self._times_ns[self._next - 1]:
            return
        self._times_ns[self._next] = now_ns
        self._values[self._next] = value
        self._next = (self._next + 1) % len(self._values)
        self._count = min(self._count + 1, len(self._values))

    def growth_per_s(self, window_ns: int) -> float | None:
        """Return the growth a second between the newest sample and the oldest inside the window before it.

        Where the window holds only the newest, the one before it stands in: a slow pace must not hide growth. None with
        fewer than two samples.
        """
        if self._count < 2:
            return None
        length = len(self._values)
        newest = (self._next - 1) % length
        back = 1
        while back + 1 < self._count and (
            self._times_ns[newest] - self._times_ns[(newest - back - 1) % length] <= window_ns
        ):
            back += 1
        oldest = (newest - back) % length
        elapsed_ns = self._times_ns[newest] - self._times_ns[oldest]
        return (self._values[newest] - self._values[oldest]) * NS_PER_S / elapsed_ns


class GrowthTable(Generic[Key]):
    """One series for each key: a cgroup id, or the node. Holds what `keep_only` was told last, nothing else."""

    def __init__(self, window_ns: int = 100 * NS_PER_MS, length: int = 16) -> None:
        self._window_ns = window_ns
        self._new_series: Callable[[], Series] = lambda: Series(length)
        self._series: dict[Key, Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def push(self, key: Key, now_ns: int, value: float) -> float | None:
        """Append a sample and return the growth a second, None for a key seen once."""
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._new_series()
        series.push(now_ns, value)
        return series.growth_per_s(self._window_ns)

    def keep_only(self, keys: Collection[Key]) -> None:
        """Forget every series whose key is not among `keys`."""
        for key in self._series.keys() - set(keys):
            del self._series[key]


def next_sample_ns(
    headroom_bytes: int,
    seen_growth_bytes_per_s: float | None = None,
    *,
    cpus: int = 2,
    floor_ns: int = 5 * NS_PER_MS,
    near_floor_ns: int = NS_PER_MS,
    cap_ns: int = NS_PER_S,
    growth_per_cpu_bytes_per_s: int = GROWTH_PER_CPU_BYTES_PER_S,
) -> int:
    """Return how long the node may go unwatched: the time in which the nearest threshold could be reached.

    Distance ÷ fastest growth, where the fastest is what all CPUs could do, or what was seen if more; never below
    the floor nor above the cap. At or above the threshold it is the floor. The floor is for a node that only may grow:
    one whose seen growth reaches the threshold within a few floors is watched at `near_floor_ns`.
    """
    if headroom_bytes <= 0:
        return floor_ns
    seen = seen_growth_bytes_per_s or 0.0
    if seen > 0 and headroom_bytes * NS_PER_S / seen < _NEAR_FLOORS * floor_ns:
        floor_ns = near_floor_ns
    fastest = max(float(cpus * growth_per_cpu_bytes_per_s), seen)
    return min(max(int(headroom_bytes * NS_PER_S / fastest), floor_ns), cap_ns)
