"""Metrics of the node's series: how much they hold, and Koordinator's names of what was measured last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.report.series.reading import read_window
from koordebpf.state.series.kinds import NODE_BE, NODE_CPU
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_S

_LATEST_NS: Final = 10 * NS_PER_S  # Why: koordlet's own bound, beyond which a measurement is outdated
_BE_USED: Final = (NODE_BE, "cpu", "usage")


def series_families(series: SeriesStore) -> Iterator[Metric]:
    """Yield what the store holds and what it had no room for."""
    counts = series.counts
    yield GaugeMetricFamily("koordebpf_series", "Series of usage.", counts.series)
    yield GaugeMetricFamily("koordebpf_series_bytes", "Memory of series, without the node's own.", counts.bytes)
    yield CounterMetricFamily(
        "koordebpf_series_dropped_samples",
        "Samples dropped before their window was over: series.budget was full.",
        counts.dropped_samples,
    )
    yield CounterMetricFamily(
        "koordebpf_series_dropped",
        "Series that had ended, dropped within their window.",
        counts.dropped_series,
    )
    yield CounterMetricFamily(
        "koordebpf_series_refused_samples", "Samples of series for which there was no room.", counts.refused_samples
    )


def koordlet_families(series: SeriesStore, node: str, now_ns: int) -> Iterator[Metric]:
    """Yield koordlet's metrics of usage, each where its series has a sample of the last seconds.

    Source:  koordinator pkg/koordlet/metrics: same names and labels.
    """
    for name, text, key in (
        ("koordlet_node_used_cpu_cores", "CPU that the node uses.", (NODE_CPU,)),
        ("koordlet_be_suppress_be_used_cpu_cores", "CPU that best-effort pods use.", _BE_USED),
    ):
        if values := read_window(series, key, now_ns, _LATEST_NS).values:
            family = GaugeMetricFamily(name, text, labels=["node"])
            family.add_metric([node], values[-1])
            yield family
