"""From counters of CPU time to rates, and to the averages that CPU eviction judges."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.series.kinds import BE_CPU, BE_CPU_LIMIT, BE_CPU_REQUEST, NODE_CPU, SeriesKey
from koordebpf.state.series.store import EVERY_NS, LONGEST_NS, NODE, NodeSeries
from koordebpf.units import NS_PER_S

_SAMPLED = ("cpu_sampled", NODE)  # 1 each time that the rest was sampled, as far as it was known
_NODE_USED = (NODE_CPU,)
_ROUNDING = 0.05  # of a millicore: so much may a mean of cores be off
# Why: 2³⁰ CPUs are more than any machine has, so that the counter jumped; sums of any number of pods stay in 63 bits.
_MOST_MILLICPU = 1 << 40
Key = TypeVar("Key", bound=Hashable)


def append_cpu(
    series: NodeSeries,
    now_ns: int,
    *,
    node_used: int | None,
    be_used: int | None,
    be_request: int | None,
    be_limit: int | None,
) -> None:
    """Append one sample, in millicpu; None: not known. One that comes too soon is dropped as a whole."""
    if not series.append(_SAMPLED, now_ns, 1):
        return
    found = {_NODE_USED: node_used, BE_CPU: be_used, BE_CPU_REQUEST: be_request, BE_CPU_LIMIT: be_limit}
    series.append_round(now_ns, {key: value / 1000 for key, value in found.items() if value is not None})


def cpu_window(series: NodeSeries, now_ns: int, window_ns: int) -> CpuWindow:
    """Return the averages of what was sampled within the window; each sample stands for `EVERY_NS`.

    A value that less than a third of the window has is not known, as in koordlet, however much there is of others.
    """
    window_ns = min(max(window_ns, EVERY_NS), LONGEST_NS)
    enough = -(-window_ns // (3 * EVERY_NS))

    def average(key: SeriesKey) -> int | None:
        mean = series.query(key, now_ns, window_ns, "avg")
        if mean is None or samples(key) < enough:
            return None
        return int(mean * 1000 + _ROUNDING)

    def samples(key: SeriesKey) -> int:
        return int(series.query(key, now_ns, window_ns, "count") or 0)

    return CpuWindow(
        window_ns=window_ns,
        covered_ns=min(samples(_SAMPLED) * EVERY_NS, window_ns),
        node_used_millicpu=average(_NODE_USED),
        be_used_millicpu=average(BE_CPU),
        be_request_millicpu=average(BE_CPU_REQUEST),
        be_limit_millicpu=average(BE_CPU_LIMIT),
    )


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
        """Take a counter and return its rate; None for the first one, and after the counter ran backwards or jumped.

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
        if rate > _MOST_MILLICPU:
            self._samples[key] = [(now_ns, used_ns, None)]
            return None
        samples.append((now_ns, used_ns, rate))
        return rate

    def forget(self, key: Key) -> None:
        """Drop one key."""
        self._samples.pop(key, None)

    def keep_only(self, keys: Collection[Key]) -> None:
        """Drop every key that is not among `keys`."""
        for key in self._samples.keys() - set(keys):
            del self._samples[key]
