"""Metrics of the node's memory and what is forecast of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from koordebpf.act.writer.change import WriteResult
from koordebpf.policy.evict.candidates.eligibility import Eligibility
from koordebpf.report.prom.colocation.series import SeriesMetrics
from koordebpf.state.measured import NodeForecast, NodeMeasure, PsiLine
from koordebpf.state.view import NodeView, PodView

FileWrites = Callable[[], Counter[tuple[str, WriteResult]]]  # attempts since the start; asked at the scrape


class NodeMetrics:
    """The node as last measured; None: not yet."""

    def __init__(self, most_forecast_pods: int = 0) -> None:
        self.most_forecast_pods = most_forecast_pods  # of which the forecast is shown
        self.measure: NodeMeasure | None = None
        self.capacity_bytes: int | None = None
        self.marks: dict[str, dict[str, int]] = {}  # feature that judges memory in use → mark → bytes
        self.forecast: NodeForecast | None = None
        self.forecast_pods: tuple[PodView, ...] = ()  # those that have one
        self.eligibility: Eligibility | None = None
        self.series: SeriesMetrics | None = None
        self.file_writes: list[FileWrites] = []  # of each that writes
        self.strategies: list[Callable[[], Iterable[Metric]]] = []  # of those whose gate is on

    def take(self, view: NodeView) -> None:
        """Take over what a full measurement says of the node."""
        self.measure, self.capacity_bytes = view.measured.node, view.capacity_bytes
        self.forecast, self.forecast_pods = view.forecast, tuple(pod for pod in view.pods if pod.forecast)

    def families(self) -> Iterator[Metric]:
        """Yield its metrics, without those of the forecast."""
        if self.measure is not None:
            yield from _families(self.measure, self.capacity_bytes)
        yield _marks(self.marks.copy())
        yield from _eligible(self.eligibility)
        if self.series is not None:
            yield from self.series.families()
        yield _file_writes(each() for each in self.file_writes)
        for families in self.strategies:
            yield from families()


def _eligible(found: Eligibility | None) -> Iterator[Metric]:
    if found is None:
        return
    yield GaugeMetricFamily(
        "koordebpf_eligible_pods",
        "Pods that may be evicted, now or later; at 0 nothing ever is.",
        found.eligible,
    )
    text = "Pods that are never evicted as they and the strategy are, by reason."
    others = GaugeMetricFamily("koordebpf_ineligible_pods", text, labels=["reason"])
    for reason, count in found.reasons.items():
        others.add_metric([reason], count)
    yield others


def _families(node: NodeMeasure, capacity_bytes: int | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("koordebpf_node_used_bytes", "Memory in use as the decision sees it.", node.used_bytes)
    if capacity_bytes is not None:
        yield GaugeMetricFamily("koordebpf_node_capacity_bytes", "Memory the percents refer to.", capacity_bytes)
    ratio = GaugeMetricFamily("koordebpf_node_psi_avg10_ratio", "Memory pressure over 10 s.", labels=["degree"])
    total = CounterMetricFamily("koordebpf_node_psi_stall_seconds", "Memory pressure, sum.", labels=["degree"])
    lines: tuple[tuple[str, PsiLine | None], ...] = (("some", node.psi_some), ("full", node.psi_full))
    for degree, line in lines:
        if line is not None:
            ratio.add_metric([degree], line.avg10 / 100)
            total.add_metric([degree], line.total_us / 1_000_000)
    yield ratio
    yield total


def _marks(marks: Mapping[str, Mapping[str, int]]) -> Metric:
    text = "Memory in use at which a feature evicts, and down to which."
    family = GaugeMetricFamily("koordebpf_node_threshold_bytes", text, labels=["feature", "mark"])
    for feature, of_feature in marks.items():
        for mark, value in of_feature.items():
            family.add_metric([feature, mark], value)
    return family


def _file_writes(counts: Iterable[Counter[tuple[str, WriteResult]]]) -> Metric:
    text = "Cgroup and sysctl writes by file and outcome."
    family = CounterMetricFamily("koordebpf_file_writes", text, labels=["file", "result"])
    for (file, result), count in sum(counts, Counter[tuple[str, WriteResult]]()).items():
        family.add_metric([file, result.value], count)
    return family
