"""From counters of CPU time to rates."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from koordebpf.units import NS_PER_S

Key = TypeVar("Key", bound=Hashable)


class CpuRates(Generic[Key]):
    """The rates of CPU-time counters over the last `window_ns`: of the node, of pods, by any key.

    Samples closer than a sixteenth of the window to the last one of their key are not kept, so that the memory of each
    is bounded whatever the pace; their rate is that of the sample before.
    """

    def __init__(self, window_ns: int = NS_PER_S) -> None:
        """Start without any sample; the first one of a key has no rate."""
        self._window_ns = window_ns
        self._apart_ns = window_ns // 16
        # now_ns, counter, rate; the oldest first: what is in the window, or one before
        self._samples: dict[Key, list[tuple[int, int, int | None]]] = {}

    def millicpu(self, key: Key, now_ns: int, used_ns: int) -> int | None:
        """Take a counter and return its rate; None for the first one, and after the counter ran backwards.

        /proc/stat's iowait may run backwards, a cgroup that is recreated under its old name begins at 0.
        """
        samples = self._samples.get(key)
        if samples is None or used_ns < samples[-1][1]:
            self._samples[key] = [(now_ns, used_ns, None)]
            return None
        last = samples[-1]
        if now_ns - last[0] < self._apart_ns:
            return last[2]
        since_ns = now_ns - self._window_ns
        while len(samples) > 1 and samples[0][0] < since_ns:
            del samples[0]
        first_ns, first, _ = samples[0]
        rate = round((used_ns - first) * 1000 / (now_ns - first_ns))
        samples.append((now_ns, used_ns, rate))
        return rate

    def forget(self, key: Key) -> None:
        """Drop one key."""
        self._samples.pop(key, None)

    def keep_only(self, keys: Collection[Key]) -> None:
        """Drop every key that is not among `keys`."""
        for key in self._samples.keys() - set(keys):
            del self._samples[key]
