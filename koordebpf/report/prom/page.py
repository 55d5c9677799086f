"""The text of /metrics, rendered for a small share of the time however often it is asked for.

What this process uses is shown under the names that all of Prometheus' libraries have for it.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from koordebpf.kernel.proc.cpu_usage import SelfUsageReader
from koordebpf.report.http.listener import Reply

_OPEN_METRICS: Final = "application/openmetrics-text"
# The loop waits for the interpreter while a page is rendered: 110 pods take some 10 ms.
_SHARE: Final = 0.01  # of one CPU. Why: a fresh page each second, for one in 100 of the loop's moments
_MOST_S: Final = 0.25  # kept for bursts. Why: several scrapers that come at once all get a fresh page
_LEVEL: Final = 1  # of gzip. Why: a tenth of the text already, for a tenth of a millisecond


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


class MetricsPage:
    """Renders a collector's metrics; a page that was asked for too often is the one that was rendered last."""

    def __init__(self, collector: Collector, cpu_s: Callable[[], float] = time.thread_time) -> None:
        """`cpu_s`: what rendering is charged by."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._cpu_s = cpu_s
        self._tokens_s = _MOST_S
        self._at_s = time.monotonic()
        self._pages: dict[str, tuple[str, bytes, bytes]] = {}  # by what was accepted: type, text, the text packed

    def reply(self, headers: Mapping[str, str]) -> Reply:
        """Return the page in the format that the headers accept."""
        # Two formats only: a client that names ever new versions would have a page of its own rendered each time.
        accept = f"{_OPEN_METRICS}; version=1.0.0" if _OPEN_METRICS in headers.get("accept", "") else ""
        now_s = time.monotonic()
        self._tokens_s = min(self._tokens_s + (now_s - self._at_s) * _SHARE, _MOST_S)
        self._at_s = now_s
        if self._tokens_s > 0 or accept not in self._pages:
            before_s = self._cpu_s()
            encoder, content_type = choose_encoder(accept)
            body = encoder(self._registry)
            self._pages[accept] = (content_type, body, gzip.compress(body, _LEVEL))
            self._tokens_s -= self._cpu_s() - before_s
        content_type, body, packed = self._pages[accept]
        if gzip_accepted(headers.get("accept-encoding", "")):
            return Reply("200 OK", content_type, packed, (("Content-Encoding", "gzip"),))
        return Reply("200 OK", content_type, body)
