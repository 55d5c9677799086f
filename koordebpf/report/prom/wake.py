"""What wakes suppression, and what looking for it costs, as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from koordebpf.events.run_queue import SLOTS, RunQueueHistogram


class WakeMetrics:
    """The loop sets the values, scrapes read them: the dictionary as a copy, which is made at once."""

    def __init__(self) -> None:
        self.wakes: dict[tuple[str, str], int] = {}  # by what, and what became of it → how often
        self.cost_ratio: float | None = None  # None: not counted yet, or no scheduler tracing
        self.sampled_ratio: float | None = None  # 0: it rests. None: no scheduler tracing
        self.waits: RunQueueHistogram | None = None

    def families(self) -> Iterator[Metric]:
        """Yield the metrics; of scheduler tracing only where it takes place."""
        wakes = CounterMetricFamily(
            "koordebpf_suppression_wakes",
            "Looks at latency-sensitive pods' CPU before the second was over.",
            labels=["source", "outcome"],
        )
        for labels, count in self.wakes.copy().items():
            wakes.add_metric(labels, count)
        yield wakes
        if self.cost_ratio is not None:
            text = "Share of the node's CPUs that scheduler tracing took when it was counted last."
            yield GaugeMetricFamily("koordebpf_sched_tracing_cost_ratio", text, self.cost_ratio)
        if self.sampled_ratio is not None:
            text = "Share of wake-ups that scheduler tracing looks at; 0: it rests."
            yield GaugeMetricFamily("koordebpf_sched_tracing_sampled_ratio", text, self.sampled_ratio)
        if self.waits is not None:
            text = "Sampled waits of latency-sensitive tasks for a CPU."
            # The last slot has no upper end.
            counts = list(accumulate(self.waits.slots))
            buckets = [(str(2 ** (slot + 1) / 1e6), float(counts[slot])) for slot in range(SLOTS - 1)]
            waits = HistogramMetricFamily("koordebpf_run_queue_wait_seconds", text)
            waits.add_metric([], [*buckets, ("+Inf", float(counts[-1]))], self.waits.total_ns / 1e9)
            yield waits
