"""How fast numbers grow, and how soon to look again.

Growth has a table of its own beside `SeriesStore`: it is looked at with each sample of each pod, and takes 0.4 µs
where a ring takes 1 µs.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from koordebpf.units import GIB, NS_PER_MS, NS_PER_S

# Why: one core faults in and clears 2.5 to 3 GiB/s of anonymous memory.
GROWTH_PER_CPU_BYTES_PER_S = 3 * GIB

_NEAR_FLOORS = 8  # Why: with a floor of 4 ms the last 32 ms before a crossing are watched closely, a transient cost

Key = TypeVar("Key", bound=Hashable)


class GrowthTable(Generic[Key]):
    """The last samples of many numbers, each under its key: a cgroup id, or the node.

    Holds the keys of the last `keep_only`, nothing else. A number that is looked at less often than the window is long
    costs two samples.
    """

    def __init__(self, window_ns: int = 100 * NS_PER_MS, length: int = 16) -> None:
        """Begin empty.

        Args:
            window_ns: over which growth is measured.
            length: samples of a key, at most.
        Raises:  ValueError: no room for two.
        """
        if length < 2:
            raise ValueError("growth needs room for two samples")
        self._window_ns = window_ns
        self._length = length
        self._samples: dict[Key, list[tuple[int, float]]] = {}  # the oldest first: what is in the window, or one before

    def __len__(self) -> int:
        return len(self._samples)

    def push(self, key: Key, now_ns: int, value: float) -> float | None:
        """Append a sample and return the growth a second, None for a key seen once.

        Growth is between the newest sample and the oldest inside the window before it. Where the window holds only the
        newest, the one before it stands in: a slow pace must not hide growth. A sample that is not newer than the last
        is dropped.
        """
        samples = self._samples.get(key)
        if samples is None:
            self._samples[key] = [(now_ns, value)]
            return None
        if now_ns > samples[-1][0]:
            since_ns = now_ns - self._window_ns
            while len(samples) >= self._length or (len(samples) > 1 and samples[0][0] < since_ns):
                del samples[0]
            samples.append((now_ns, value))
        elif len(samples) == 1:
            return None
        (first_ns, first), (last_ns, last) = samples[0], samples[-1]
        return (last - first) * NS_PER_S / (last_ns - first_ns)

    def keep_only(self, keys: Collection[Key]) -> None:
        """Forget every key that is not among these."""
        for key in self._samples.keys() - set(keys):
            del self._samples[key]


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
