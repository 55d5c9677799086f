"""The metrics of `koordebpf controller`, built at the scrape from numbers that its loop sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from koordebpf import __version__
from koordebpf.report.prom.bounded import by_label
from koordebpf.report.prom.page import OwnUsage
from koordebpf.store.line_sink import LineSink

# The metrics of batch and mid resources, a part of the controller's.


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


class ConfigMapMetrics:
    """What is wrong with slo-controller-config."""

    def __init__(self) -> None:
        self.problems: dict[str, int] = {}  # reason → problems
        self.stale_keys: tuple[str, ...] = ()

    def families(self) -> Iterator[Metric]:
        """Yield its metrics."""
        text = "What is wrong with slo-controller-config."
        yield by_label(GaugeMetricFamily, "koordebpf_controller_configmap_problems", text, "reason", self.problems)
        stale = GaugeMetricFamily(
            "koordebpf_controller_configmap_key_stale", "1: the key is unusable, an older is in force.", labels=["key"]
        )
        for key in self.stale_keys:
            stale.add_metric([key], 1)
        yield stale


class RoundMetrics:
    """Looks at all Nodes."""

    def __init__(self) -> None:
        self.count = 0
        self.last_s = 0.0


class ControllerMetrics(Collector):
    """Everything `/metrics` of the controller shows. The loop writes, the HTTP server's threads read."""

    def __init__(self) -> None:
        self._own_usage = OwnUsage()
        self.is_leader = False
        self.is_dry_run = False
        self.led = 0
        self.nodes = 0
        self.nodeslos: dict[str, int] = {}  # state → objects: settled, pending, foreign, orphaned
        self.requests: dict[str, int] = {}  # outcome → writes: created, updated, conflict, failed
        self.overwritten = 0
        self.configmap = ConfigMapMetrics()
        self.batch = BatchMetrics()
        self.rounds = RoundMetrics()
        self.log_sink: LineSink | None = None

    def collect(self) -> Iterable[Metric]:
        """Yield every metric."""
        yield InfoMetricFamily("koordebpf_build", "The controller's version.", {"version": __version__})
        yield GaugeMetricFamily("koordebpf_controller_leader", "1: this one writes.", float(self.is_leader))
        yield GaugeMetricFamily("koordebpf_controller_dry_run", "1: nothing is written.", float(self.is_dry_run))
        yield CounterMetricFamily("koordebpf_controller_elected", "Times that this one began to lead.", self.led)
        yield GaugeMetricFamily("koordebpf_controller_nodes", "Nodes of the cluster.", self.nodes)
        text = "NodeSLOs by state."
        yield by_label(GaugeMetricFamily, "koordebpf_controller_nodeslos", text, "state", self.nodeslos)
        text = "Writes of NodeSLOs by outcome."
        yield by_label(CounterMetricFamily, "koordebpf_controller_writes", text, "outcome", self.requests)
        text = "Times that another changed a NodeSLO after it was written."
        yield CounterMetricFamily("koordebpf_controller_overwritten", text, self.overwritten)
        yield from self.configmap.families()
        yield from self.batch.families()
        yield CounterMetricFamily("koordebpf_controller_rounds", "Looks at all Nodes.", self.rounds.count)
        yield GaugeMetricFamily("koordebpf_controller_round_seconds", "Duration of the last one.", self.rounds.last_s)
        if self.log_sink is not None:
            yield CounterMetricFamily("koordebpf_log_dropped", "Log lines lost.", self.log_sink.dropped)
            yield GaugeMetricFamily("koordebpf_log_waiting", "Log lines not written yet.", self.log_sink.waiting)
        yield from self._own_usage.collect()
