"""Scheduler tracing within its budget: what it takes is counted, and where that is too much it looks at less."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from koordebpf.errors import DecodeError, SupportError
from koordebpf.events.run_queue import (
    SLOTS,
    RunQueueHistogram,
    RunQueueWait,
    added,
    check_layout,
    decode_histograms,
    decode_wait,
)
from koordebpf.kernel.bpf.sched_latency import RunTime, SchedLatency
from koordebpf.kernel.io.loop import Loop
from koordebpf.strategies.cpu_suppress.bursts import TracingPace, paced
from koordebpf.strategies.cpu_suppress.values import WakeSettings
from koordebpf.units import NS_PER_S, format_ns

log = logging.getLogger(__name__)
_LOOK_EVERY_NS = 5 * NS_PER_S
_SOON_NS = NS_PER_S // 4  # after another pace, and at start
_REST_NS = 60 * NS_PER_S


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


def open_latency(settings: WakeSettings) -> SchedLatency:
    """Load the programs.

    Raises:  SupportError: they are not supported here.
    """
    return SchedLatency(settings.wait_ns, settings.burst_window_ns, check_layout)


class SchedTracing:
    """Attaches the scheduler's programs, and detaches them.

    Args:
        latency: the programs, not attached; owned from here on.
        settings: of waking.
        loop: is woken by records.
        seen: gets them.
        metrics: what is shown of it.
    Raises:  SupportError: they are not supported here.
    """

    def __init__(
        self,
        latency: SchedLatency,
        settings: WakeSettings,
        loop: Loop,
        seen: Callable[[RunQueueWait], None],
        metrics: WakeMetrics,
    ) -> None:
        self._budget_ratio = settings.budget_ratio
        self._loop = loop
        self._seen = seen
        self._metrics = metrics
        self._latency = latency
        self._pace = TracingPace()
        self._taken = RunTime()
        self._looked_ns = time.monotonic_ns()
        self._next_ns = self._looked_ns + _SOON_NS
        self._gone = RunQueueHistogram()  # of cgroups that are not followed any more
        try:
            self._apply_pace()
        except BaseException:
            self._latency.close()
            raise
        loop.watch(self._latency.fileno(), self._read)

    def follow(self, latency_sensitive: Collection[int], best_effort: Collection[int]) -> None:
        """Follow the tasks of these cgroups of the cpu controller's hierarchy."""
        keep = {*latency_sensitive}
        waits = decode_histograms(self._latency.groups())
        self._gone = added([self._gone, *(each for cgroup_id, each in waits.items() if cgroup_id not in keep)])
        if missed := self._latency.keep_groups(latency_sensitive, best_effort):
            log.warning("%d cgroups are more than scheduler tracing can follow", missed)

    def listen_each(self, quiet_ns: int) -> None:
        """Be woken no sooner after the last time."""
        self._latency.send_each(quiet_ns)

    def poll(self, now_ns: int) -> None:
        """Look at what the programs took since the last time, if it is due, and adapt the sampling to it."""
        if now_ns < self._next_ns:
            return
        before, self._taken = self._taken, self._latency.run_time()
        since_ns, self._looked_ns = self._looked_ns, now_ns
        if self._pace.shift is None:  # it has rested
            self._change(0.0, now_ns)
            return
        ratio = self._taken.since(before) / ((now_ns - since_ns) * (os.cpu_count() or 1))
        self._metrics.cost_ratio = ratio
        self._metrics.waits = added([self._gone, *decode_histograms(self._latency.groups()).values()])
        self._change(ratio, now_ns)

    @property
    def due_ns(self) -> int:
        """When `poll` is due."""
        return self._next_ns

    def _change(self, ratio: float, now_ns: int) -> None:
        before, self._pace = self._pace, paced(self._pace, ratio, self._budget_ratio)
        try:
            if self._pace.is_new:
                self._apply_pace()
                self._tell(before.shift, ratio)
        except SupportError as error:  # it was attached before: out of memory, perhaps
            self._pace = TracingPace(None)
            self._apply_pace()
            log.warning("%s; it rests for %s", error, format_ns(_REST_NS))
        soon_ns = _SOON_NS if self._pace.is_new else _LOOK_EVERY_NS
        self._next_ns = now_ns + (_REST_NS if self._pace.shift is None else soon_ns)

    def _apply_pace(self) -> None:
        shift = self._pace.shift
        self._metrics.sampled_ratio = 0.0 if shift is None else 1 / (1 << shift)
        if shift is None:
            self._latency.detach()
        else:
            self._latency.attach(shift)

    def _tell(self, before: int | None, ratio: float) -> None:
        shift = self._pace.shift
        took = f"scheduler tracing took {ratio:.2%} of the node's CPUs"
        if shift is None:
            log.warning(
                "%s, of %.2g %% that it may: it rests for %s", took, 100 * self._budget_ratio, format_ns(_REST_NS)
            )
        elif before is None:
            log.info("scheduler tracing continues: one wake-up of %d is traced", 1 << shift)
        elif shift > before:
            log.warning(
                "%s, of %.2g %% that it may: one wake-up of %d is traced", took, 100 * self._budget_ratio, 1 << shift
            )

    def _read(self) -> None:
        for buf in self._latency.read():
            try:
                self._seen(decode_wait(buf))
            except DecodeError as error:
                log.error("%s", error)

    def close(self) -> None:
        """Detach everything."""
        self._loop.unwatch(self._latency.fileno())
        self._latency.close()
