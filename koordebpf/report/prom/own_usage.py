"""What this process uses, under the names that all of Prometheus' libraries have for it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from koordebpf.kernel.proc.self_usage import SelfUsageReader


class OwnUsage(Collector):
    """CPU, memory, threads and descriptors of the process, read at each scrape."""

    def __init__(self) -> None:
        self._reader = SelfUsageReader()

    def collect(self) -> Iterator[Metric]:
        """Yield its metrics."""
        usage = self._reader.read()
        yield CounterMetricFamily("process_cpu_seconds", "CPU time of this process.", usage.cpu_s)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory of this process.", usage.rss_bytes)
        yield GaugeMetricFamily("process_virtual_memory_bytes", "Address space of this process.", usage.virtual_bytes)
        yield GaugeMetricFamily("process_threads", "Threads of this process.", usage.threads)
        yield GaugeMetricFamily("process_open_fds", "Open descriptors of this process.", usage.open_fds)
        yield GaugeMetricFamily("process_start_time_seconds", "Unix time of this process's start.", usage.started_s)
