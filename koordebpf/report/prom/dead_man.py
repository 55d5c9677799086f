"""The dead man's switch as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class DeadManMetrics:
    """Whether it is armed, and what it did. The loop writes, scrapes read."""

    def __init__(self) -> None:
        self.is_armed = False
        self.late_stalls = 0
        self.spared = 0
        self._fired: Counter[str] = Counter()  # by mode

    def count(self, mode: str) -> None:
        """Count one time that it fired."""
        self._fired[mode] += 1

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        text = "Whether the dead man's switch has a pod that it would kill."
        yield GaugeMetricFamily("koordebpf_dead_man_armed", text, int(self.is_armed))
        fired = CounterMetricFamily("koordebpf_dead_man_fired", "Times that it fired, by mode.", labels=["mode"])
        for mode in ("count", "kill"):
            fired.add_metric([mode], self._fired[mode])
        yield fired
        text = "Stalls for memory of the node's tasks that ended while the heartbeat was late."
        yield CounterMetricFamily("koordebpf_dead_man_late_stalls", text, self.late_stalls)
        text = "Times that it did not fire because the node was below its threshold."
        yield CounterMetricFamily("koordebpf_dead_man_spared", text, self.spared)
