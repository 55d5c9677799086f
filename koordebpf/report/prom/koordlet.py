"""Koordinator's own names of what this agent counts too, for dashboards and alerts that were made for koordlet."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.state.measured import NodeMeasure
from koordebpf.state.prediction import Amounts, LatestPrediction
from koordebpf.units import NS_PER_S

_REASON = "evicted"  # all that koordlet ever says; the feature is a label of koordebpf_evictions_total
_DETAIL_NS = 300 * NS_PER_S  # Why: koordlet drops a pod's series about 5 minutes after it last counted
_MAX_DETAILS = 500  # Why: 5 minutes of ten times the default budget of 10 evictions a minute

_PREDICTION_LABELS = ("node", "predictor", "resource", "unit")
_STALE_NS = 600 * NS_PER_S  # Why: as long as the longest training interval


class KoordletMetrics:
    """Evictions as koordlet counts them: those that were carried out.

    Source:  koordinator pkg/koordlet/metrics: same names, same labels.
    Differs: koordlet counts a pod whose containers it could not stop; this does not.
    """

    def __init__(self, node: str, started_wall_s: float, prediction: LatestPrediction | None = None) -> None:
        self.node = node
        self._prediction = prediction
        self._started_wall_s = started_wall_s
        self._evictions = 0
        self._by_pod: dict[tuple[str, str], tuple[int, int]] = {}  # namespace, name → count, when

    def count_eviction(self, namespace: str, name: str, now_ns: int) -> None:
        """Count one pod that was evicted."""
        self._evictions += 1
        count, _ = self._by_pod.pop((namespace, name), (0, 0))
        kept = [each for each in self._by_pod.items() if now_ns - each[1][1] < _DETAIL_NS][-(_MAX_DETAILS - 1) :]
        self._by_pod = {**dict(kept), (namespace, name): (count + 1, now_ns)}

    def families(self, node: NodeMeasure | None, now_ns: int) -> Iterator[Metric]:
        """Yield every family that has a value."""
        yield node_gauge(
            "koordlet_start_time", "Unix time of the start of this agent.", self.node, self._started_wall_s
        )
        if node is not None:
            text = "Memory in use as the decision sees it."
            yield node_gauge("koordlet_node_used_memory_bytes", text, self.node, node.known_used_bytes)
        if self._prediction is not None:
            yield from prediction_families(self.node, self._prediction, now_ns)
        # Counters to koordlet, but without _total, which the format wants of a counter: so they have no type here.
        evictions = Metric("koordlet_pod_eviction", "Pods that were evicted.", "unknown")
        if self._evictions:
            evictions.add_sample(evictions.name, {"node": self.node, "reason": _REASON}, self._evictions)
        yield evictions
        detail = Metric("koordlet_pod_eviction_detail", "Pods that were evicted, each for 5 minutes.", "unknown")
        for (namespace, name), (count, at_ns) in self._by_pod.copy().items():
            if now_ns - at_ns < _DETAIL_NS:
                labels = {"node": self.node, "pod_namespace": namespace, "pod_name": name, "reason": _REASON}
                detail.add_sample(detail.name, labels, count)
        yield detail


def node_gauge(name: str, text: str, node: str, value: float) -> GaugeMetricFamily:
    """Return a gauge of koordlet's that has the node's name alone as its label."""
    family = GaugeMetricFamily(name, text, labels=["node"])
    family.add_metric([node], value)
    return family


def prediction_families(node: str, latest: LatestPrediction, now_ns: int) -> Iterator[Metric]:
    """Yield what each predictor said last; nothing where that is long ago.

    Source:  koordinator pkg/koordlet/metrics/prediction.go.
    """
    if latest.newer_than(now_ns - _STALE_NS) is None:
        return
    text = "What prod pods request and will not use, as predicted."
    reclaimable = GaugeMetricFamily("koordlet_node_predicted_resource_reclaimable", text, labels=_PREDICTION_LABELS)
    text = "What prod pods will use at most, as predicted."
    peak = GaugeMetricFamily("koordlet_node_predicted_resource_peak", text, labels=_PREDICTION_LABELS)
    for predictor, prod in latest.by.items():
        _add(reclaimable, node, predictor, prod.reclaimable)
        _add(peak, node, predictor, prod.peak)
    yield from (family for family in (reclaimable, peak) if family.samples)


def _add(family: GaugeMetricFamily, node: str, predictor: str, amounts: Amounts | None) -> None:
    if amounts is not None:
        family.add_metric([node, predictor, "cpu", "core"], amounts.cpu_millicpu / 1000)
        family.add_metric([node, predictor, "memory", "byte"], amounts.memory_bytes)
