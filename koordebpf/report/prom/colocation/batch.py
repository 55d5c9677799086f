"""The metrics of batch and mid resources, a part of the controller's."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.report.prom.bounded import by_label


class BatchMetrics:
    """What the controller does for batch and mid resources; there are none while it does nothing."""

    def __init__(self) -> None:
        self.is_on = False
        self.nodes: dict[str, int] = {}  # state → Nodes: computed, reset, pending, foreign
        self.writes: dict[str, int] = {}  # of what → writes: node, nodemetric, failed
        self.last_look_s = 0.0

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        if not self.is_on:
            return
        text = "Nodes by what became of their batch and mid resources."
        yield by_label(GaugeMetricFamily, "koordebpf_controller_batch_nodes", text, "state", self.nodes)
        text = "Writes of Nodes and NodeMetrics for batch and mid resources, and those that failed."
        yield by_label(CounterMetricFamily, "koordebpf_controller_batch_writes", text, "of", self.writes)
        text = "Duration of the last look at batch and mid resources, its writes included."
        yield GaugeMetricFamily("koordebpf_controller_batch_look_seconds", text, self.last_look_s)
