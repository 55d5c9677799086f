"""Counters of many cgroups, and how fast each grew since it was read last. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from koordebpf.units import NS_PER_S

# Why 20 s: koordlet forgets a counter that was not read for twenty of its intervals.
LONGEST_NS = 20 * NS_PER_S


class CounterRates:
    """Rates of counters that only grow. The first value of a key has none.

    A counter that went back gets no sample. Once it may be the kernel's: what a CPU counted is added up while it is
    read. The next rate is then from the value before. Twice in a row it was started again, and so is its rate.

    Attributes:
        went_back: how often a counter went back.
        too_old: how often the value before was more than `LONGEST_NS` old, as after a suspend.
    """

    def __init__(self) -> None:
        self.went_back = 0
        self.too_old = 0
        self._last: dict[int, tuple[int, int]] = {}  # time and value
        self._fell: set[int] = set()

    def push(self, t_ns: int, values: Mapping[int, int]) -> dict[int, float]:
        """Take values that were all read at `t_ns`; return the growth a nanosecond of those that have one."""
        rates: dict[int, float] = {}
        last = self._last
        for key, value in values.items():
            before = last.get(key)
            if before is None:
                last[key] = (t_ns, value)
                continue
            since_ns, since = t_ns - before[0], value - before[1]
            if since < 0:
                self._back(key, t_ns, value)
            elif since_ns > LONGEST_NS:
                self.too_old += 1
                last[key] = (t_ns, value)
            elif since_ns > 0:
                last[key] = (t_ns, value)
                rates[key] = since / since_ns
        if self._fell:
            self._fell -= rates.keys()
        return rates

    def _back(self, key: int, t_ns: int, value: int) -> None:
        self.went_back += 1
        if key in self._fell:
            self._fell.discard(key)
            self._last[key] = (t_ns, value)
        else:
            self._fell.add(key)

    def keep_only(self, keys: Collection[int]) -> None:
        """Forget every key that is not among these."""
        for key in self._last.keys() - set(keys):
            del self._last[key]
            self._fell.discard(key)


class ThrottledRatios:
    """Periods in which a cgroup was throttled, per period, since it was read last: 0 while there is no new period.

    A cgroup without a quota has no periods, and no ratio either.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}  # periods, and those of them in which it was throttled

    def push(self, counts: Mapping[int, tuple[int, int]]) -> dict[int, float]:
        """Take periods and throttled periods since the cgroup was made; return the ratios of those that have one."""
        ratios: dict[int, float] = {}
        last = self._last
        for key, now in counts.items():
            before = last.get(key)
            if before == now:
                if now[0]:
                    ratios[key] = 0.0
                continue
            last[key] = now
            if before is not None:
                periods, throttled = now[0] - before[0], now[1] - before[1]
                if periods > 0 and throttled >= 0:
                    ratios[key] = throttled / periods
        return ratios

    def keep_only(self, keys: Collection[int]) -> None:
        """Forget every key that is not among these."""
        for key in self._last.keys() - set(keys):
            del self._last[key]
