"""Katalyst's eviction manager as a scrape and the probes show it: rounds from frames, published as the agent does."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from koordebpf.collect.node_watch import SignalState
from koordebpf.decision.decide_tick import TickDecision, tick_view
from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.sink import RoundEnded
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.sink import KatalystSink
from koordebpf.strategies.katalyst.values import KatalystFacts
from tests.strategies.katalyst.test_katalyst_frames import QUIET, Node
from tests.support.values.builders import NOW_NS, PodAndMeasure

SIGNALS = SignalState(SignalQuality("files", "pressure", "watched", "files", "backend files: …"))
ACTED_NS = 2_000_000  # after the measurement


class ScrapedNode(Node):
    """A node whose rounds are counted. `facts` is what became of decisions beside evictions."""

    def __init__(self, pods: Iterable[PodAndMeasure], settings: KatalystSettings = QUIET) -> None:
        super().__init__(pods, settings)
        self.metrics, self.health = AgentMetrics(), Health()
        self.sink = KatalystSink(settings, dry_run=False, clock_ns=lambda: self.now_ns)
        self.metrics.node.strategies.append(self.sink.families)
        self.health.beside.parts.append(self.sink.checks)
        self.facts = KatalystFacts()
        self.now_ns = NOW_NS

    def round(self, after_s: float = 0) -> TickDecision:
        """As of a node, and count it."""
        decision = super().round(after_s)
        assert self.tick is not None
        view = tick_view(self.tick)
        self.now_ns = view.now_ns
        self.sink.acted(self.facts, view.now_ns + ACTED_NS)
        self.sink.publish(RoundEnded(self.tick, view, decision, SIGNALS))
        return decision

    def outcome(self, uid: str, result: Result) -> None:
        """Let an executor answer."""
        self.sink.publish(OutcomeArrived(Outcome(uid, "kat", uid, "api", result, "", 0), self.now_ns))

    def failing(self, after_s: float = 0) -> dict[str, str]:
        """Return the problems of all checks, so long after the last round."""
        now_ns = self.now_ns + int(after_s * 1e9)
        return {each.name: why for each in self.sink.checks() if (why := each.failure(now_ns)) is not None}

    def scrape(self) -> list[Metric]:
        """Return the families of a scrape."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self.metrics)
        return list(text_string_to_metric_families(generate_latest(registry).decode()))

    def rows(self, metric: str) -> list[tuple[dict[str, str], float]]:
        """Return the samples of one metric."""
        return [(each.labels, each.value) for family in self.scrape() for each in family.samples if each.name == metric]

    def value(self, metric: str, /, **labels: str) -> float:
        """Return the one sample that has these labels."""
        (value,) = [value for found, value in self.rows(metric) if labels.items() <= found.items()]
        return value
