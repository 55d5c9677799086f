"""From counters of CPU time to rates, and from rates to the averages that CPU eviction judges."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.units import NS_PER_MS, NS_PER_S

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


class _Sample(msgspec.Struct, frozen=True, gc=False):
    now_ns: int
    node_used: int | None
    be_used: int | None
    be_request: int | None
    be_limit: int | None


class CpuWindows:
    """The samples of the last minutes, from which the window of any strategy is averaged. One each second is kept."""

    def __init__(self, longest_ns: int = 600 * NS_PER_S, every_ns: int = NS_PER_S) -> None:
        """Start empty.

        Args:
            longest_ns: a longer window is averaged over this. Why 10 min: longer than that is no reaction.
            every_ns: samples that come sooner after the last kept one are left out; koordlet's interval.
        """
        self._longest_ns = longest_ns
        self._every_ns = every_ns
        self._samples: deque[_Sample] = deque(maxlen=longest_ns // every_ns + 1)

    def push(
        self, now_ns: int, *, node_used: int | None, be_used: int | None, be_request: int | None, be_limit: int | None
    ) -> None:
        """Keep one sample, in millicpu; None: not known."""
        # A wake-up some milliseconds early must not halve the pace.
        if self._samples and now_ns - self._samples[-1].now_ns < self._every_ns - 50 * NS_PER_MS:
            return
        self._samples.append(_Sample(now_ns, node_used, be_used, be_request, be_limit))

    def window(self, now_ns: int, window_ns: int) -> CpuWindow:
        """Return the averages of what was sampled within the window; each sample stands for `every_ns`.

        A value that less than a third of the window has is not known, as in koordlet, however much there is of others.
        """
        window_ns = min(max(window_ns, self._every_ns), self._longest_ns)
        inside = [sample for sample in self._samples if now_ns - sample.now_ns < window_ns]
        enough = -(-window_ns // (3 * self._every_ns))
        return CpuWindow(
            window_ns=window_ns,
            covered_ns=min(len(inside) * self._every_ns, window_ns),
            node_used_millicpu=_average((sample.node_used for sample in inside), enough),
            be_used_millicpu=_average((sample.be_used for sample in inside), enough),
            be_request_millicpu=_average((sample.be_request for sample in inside), enough),
            be_limit_millicpu=_average((sample.be_limit for sample in inside), enough),
        )


def _average(values: Iterable[int | None], enough: int) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if len(known) >= enough else None
