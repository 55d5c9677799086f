"""When memory will be full: from how it grew over windows of many lengths to an interval. Pure; knows no thresholds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from heapq import nlargest
from typing import Generic, TypeVar

from koordebpf.state.measured import TimeTo
from koordebpf.units import NS_PER_MS, NS_PER_S

Key = TypeVar("Key", bound=Hashable)
Growth = tuple[float, float]  # seconds looked back, bytes grown since

SOONEST = 10  # Why: a page shows no more, and each costs 12 µs with its windows
HORIZON_S = 86_400.0  # Why: what is a day off is no forecast of a minute's samples

# What follows was chosen by tests/bench/forecast.py: the least width at which nine of ten truths on bursts, teeth and
# noisy ramps lie in the interval.
# The windows that tell of a crossing T away are those from T/16 to 4·T: shorter ones are noise, longer ones the past.
_SHORTEST = 16
_LONGEST = 4
_SLOPE = 4  # of these, what is at least T/4 long bounds how fast and how slow it may continue
_BAND = 2.0  # what lies off the line was seen at a dozen moments: at others it may be twice as much
_ROUNDS = 8
_MOST_STALLED = 0.9

_PER_AGE = 4  # samples follow each other by at most a quarter of their age
_UNSEEN = 1 << 62  # more than anything grew from
_NOW = TimeTo(0, 0, 0)


class GrowthHistory(Generic[Key]):
    """Samples of many numbers, taken together: dense lately, sparse long ago, so that every window has its begin.

    Cost:    a push 0.2 µs and now and then 15 µs; five samples of references for each doubling of the span.
    """

    def __init__(self, shortest_ns: int = 250 * NS_PER_MS, span_ns: int = 256 * NS_PER_S) -> None:
        """Begin empty.

        Args:
            shortest_ns: the shortest window, and how close two samples may follow each other.
            span_ns: the longest window; older samples are forgotten.
        """
        self._shortest_ns = shortest_ns
        self._span_ns = span_ns
        self._times_ns: list[int] = []
        self._samples: list[Mapping[Key, int]] = []
        self._thin_at = 64
        self._windows: list[tuple[float, Mapping[Key, int]]] = []

    def __len__(self) -> int:
        return len(self._times_ns)

    def is_due(self, now_ns: int) -> bool:
        """Tell whether a sample at `now_ns` would be taken; one that follows too closely is not needed."""
        return not self._times_ns or now_ns - self._times_ns[-1] >= self._shortest_ns

    def push(self, now_ns: int, values: Mapping[Key, int]) -> None:
        """Take `values` as they are at `now_ns`; they must not change any more. What comes too soon is left out."""
        if not self.is_due(now_ns):
            return
        self._windows = self._past(now_ns)
        self._times_ns.append(now_ns)
        self._samples.append(values)
        if len(self._times_ns) >= self._thin_at:
            self._thin(now_ns)
            self._thin_at = len(self._times_ns) + 32

    def growths(self, key: Key) -> list[Growth]:
        """Return how much a number had grown at the last sample, for windows of doubling length, shortest first."""
        value = self._samples[-1].get(key) if self._samples else None
        if value is None:
            return []
        return [(span_s, value - before) for span_s, sample in self._windows if (before := sample.get(key)) is not None]

    def soonest(self, rooms: Mapping[Key, int], most: int) -> list[Key]:
        """Return the keys of those numbers that grew and, at a glance, use up their room first; at most `most`.

        The glance is at a window of middle length. The keys of `rooms` must be among those pushed last.

        Cost:    0.2 µs a number.
        """
        if not self._windows:
            return []
        newest = self._samples[-1]
        _, sample = self._windows[len(self._windows) // 2]
        soon = {
            key: grown / (room + 1)
            for key, room in rooms.items()
            if (grown := newest[key] - sample.get(key, _UNSEEN)) > 0
        }
        return list(soon) if len(soon) <= most else nlargest(most, soon, key=soon.__getitem__)

    def _past(self, now_ns: int) -> list[tuple[float, Mapping[Key, int]]]:
        # For each window the newest sample that is at least so old; the oldest of all where none is.
        windows: list[tuple[float, Mapping[Key, int]]] = []
        at = len(self._times_ns) - 1
        span_ns = self._shortest_ns
        while at >= 0 and span_ns <= self._span_ns * 2:
            while at > 0 and now_ns - self._times_ns[at] < span_ns:
                at -= 1
            age_ns = now_ns - self._times_ns[at]
            if age_ns > self._span_ns * 2:
                break
            windows.append((age_ns / NS_PER_S, self._samples[at]))
            if at == 0:
                break
            while span_ns <= age_ns:
                span_ns *= 2
        return windows

    def _thin(self, now_ns: int) -> None:
        # From the oldest on, which stays: a sample is dropped if its neighbours are then no farther apart than 1/4 of
        # their age. From the newest on, every sample would go once its newer neighbour is too near for its age.
        times_ns, samples = self._times_ns, self._samples
        first = next(at for at, time_ns in enumerate(times_ns) if now_ns - time_ns <= 2 * self._span_ns)
        kept = [first]
        for at in range(first + 1, len(times_ns) - 1):
            before_ns = times_ns[kept[-1]]
            if times_ns[at + 1] - before_ns > (now_ns - before_ns) // _PER_AGE:
                kept.append(at)
        if first < len(times_ns) - 1:
            kept.append(len(times_ns) - 1)
        self._times_ns = [times_ns[at] for at in kept]
        self._samples = [samples[at] for at in kept]


def time_to(room: int, growths: Sequence[Growth], stalled_ratio: float = 0.0) -> TimeTo | None:
    """Return in how long `room` bytes more will be used if the trend continues; None: it does not grow.

    Of the growth over windows of doubling length those count that are neither much shorter nor much longer than the
    answer T itself. The median of their rates gives the point: a step is one only while it is new, a ramp is followed
    once it is as old as T/4, and the teeth of a saw are seen through. The interval is that of the longer windows' rates
    and of a band around the line, as wide as any window ended off it, wider where T is longer than all windows.

    Args:
        room: what is left; 0 or less: it is full.
        growths: as `GrowthHistory.growths` gives them.
        stalled_ratio: share of the time in which reclaim held it back. Without, it grows that much faster.
    Cost:    8 µs.
    """
    if room <= 0:
        return _NOW
    rates = [(span_s, grown / span_s) for span_s, grown in growths]
    fastest = max([rate for _, rate in rates], default=0.0)
    if fastest <= 0:
        return None
    near: list[tuple[float, float]] = []
    horizon_s = room / fastest
    for _ in range(_ROUNDS):
        before, near = near, _near(rates, horizon_s)
        if near == before:
            break
        point = _median([rate for _, rate in near])
        answer_s = room / point if point > 0 else 4 * horizon_s
        if horizon_s > HORIZON_S or (point > 0 and answer_s <= horizon_s):
            break
        horizon_s = answer_s
    if point <= 0 or room / point > HORIZON_S:
        return None
    point_s, longest_s = room / point, near[-1][0]
    shortest_s, past_s = min(point_s, longest_s) / _SLOPE, max(point_s * _LONGEST, longest_s)
    slopes = [rate for span_s, rate in near if span_s >= shortest_s]
    off = max([abs(rate - point) * span_s for span_s, rate in rates if span_s <= past_s])
    band = _BAND * off * max(point_s / longest_s, 1.0) ** 0.5  # as a random walk strays
    slowest = min(*slopes, point)
    high_s = (room + band) / slowest if slowest > 0 else 2 * HORIZON_S
    low_s = max(room - band, 0.0) / max(*slopes, point) * (1 - min(max(stalled_ratio, 0.0), _MOST_STALLED))
    return TimeTo(
        int(low_s * NS_PER_S), int(point_s * NS_PER_S), int(high_s * NS_PER_S) if high_s <= HORIZON_S else None
    )


def _near(rates: Sequence[tuple[float, float]], horizon_s: float) -> list[tuple[float, float]]:
    shortest_s, longest_s = horizon_s / _SHORTEST, horizon_s * _LONGEST
    near = [each for each in rates if shortest_s <= each[0] <= longest_s]
    if len(near) >= 2:
        return near
    # None that fits: those that are nearest to it in length.
    return list(rates[:2] if rates[0][0] > horizon_s else rates[-3:])


# statistics.median is three times slower, and this is most of the cost.
def _median(numbers: list[float]) -> float:
    numbers.sort()
    middle = len(numbers) // 2
    return numbers[middle] if len(numbers) % 2 else (numbers[middle - 1] + numbers[middle]) / 2
