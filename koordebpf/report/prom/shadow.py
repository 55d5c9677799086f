"""Shadow configurations as metrics, one series each for at most four of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.decision.what_if.week import ShadowDay

_KINDS = ("same", "avoided", "needless", "in_time", "too_late")
_OVER = {"acting": "over_acting", "kubelet": "over_kubelet", "oom_kill": "over_oom"}


class Judged(Protocol):
    """What configurations came to since the start; `jobs.shadow.ShadowSink` is one."""

    cpu_s: float

    def total(self) -> ShadowDay:
        """Return it; from any thread."""


class ShadowMetrics:
    """What they came to, read at the scrape."""

    def __init__(self, judged: Judged) -> None:
        self._judged = judged

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        total = self._judged.total()
        shadows = total.shadows.items()
        text = "Pods that a shadow configuration would have evicted."
        evictions = CounterMetricFamily("koordebpf_shadow_evictions", text, labels=["configuration"])
        text = "Memory that these pods held."
        freed = CounterMetricFamily("koordebpf_shadow_freed_bytes", text, labels=["configuration"])
        text = "Time that a shadow configuration's node was at or above its threshold."
        above = CounterMetricFamily("koordebpf_shadow_above_seconds", text, labels=["configuration"])
        text = "Decisions of a shadow configuration beside what really happened."
        kinds = CounterMetricFamily("koordebpf_shadow_decisions", text, labels=["configuration", "kind"])
        text = "How long before the other a shadow configuration evicted, on average since the start."
        leads = GaugeMetricFamily("koordebpf_shadow_lead_seconds", text, labels=["configuration", "over"])
        for name, counts in shadows:
            evictions.add_metric([name], counts.evictions)
            freed.add_metric([name], counts.freed_bytes)
            above.add_metric([name], counts.above_s)
            for kind in _KINDS:
                kinds.add_metric([name, kind], getattr(counts, kind))
            for over, field in _OVER.items():
                if (mean_s := getattr(counts, field).mean_s) is not None:
                    leads.add_metric([name, over], mean_s)
        yield from (evictions, freed, above, kinds, leads)
        text = "Crossings of kubelet's hard eviction threshold, and kernel OOM kills for the node's memory."
        events = CounterMetricFamily("koordebpf_shadow_node_events", text, labels=["event"])
        events.add_metric(["kubelet"], total.node.kubelet)
        events.add_metric(["oom_kill"], total.node.oom_kills)
        yield events
        text = "CPU time of judging shadow configurations."
        yield CounterMetricFamily("koordebpf_shadow_cpu_seconds", text, self._judged.cpu_s)
