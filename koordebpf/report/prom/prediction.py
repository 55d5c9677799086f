"""What is predicted of prod pods, under koordlet's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.state.prediction.values import Amounts, LatestPrediction
from koordebpf.units import NS_PER_S

_LABELS: Final = ("node", "predictor", "resource", "unit")
_STALE_NS: Final = 600 * NS_PER_S  # Why: as long as the longest training interval


def prediction_families(node: str, latest: LatestPrediction, now_ns: int) -> Iterator[Metric]:
    """Yield what each predictor said last; nothing where that is long ago.

    Source:  koordinator pkg/koordlet/metrics/prediction.go.
    """
    if latest.newer_than(now_ns - _STALE_NS) is None:
        return
    text = "What prod pods request and will not use, as predicted."
    reclaimable = GaugeMetricFamily("koordlet_node_predicted_resource_reclaimable", text, labels=_LABELS)
    text = "What prod pods will use at most, as predicted."
    peak = GaugeMetricFamily("koordlet_node_predicted_resource_peak", text, labels=_LABELS)
    for predictor, prod in latest.by.items():
        _add(reclaimable, node, predictor, prod.reclaimable)
        _add(peak, node, predictor, prod.peak)
    yield from (family for family in (reclaimable, peak) if family.samples)


def _add(family: GaugeMetricFamily, node: str, predictor: str, amounts: Amounts | None) -> None:
    if amounts is not None:
        family.add_metric([node, predictor, "cpu", "core"], amounts.cpu_millicpu / 1000)
        family.add_metric([node, predictor, "memory", "byte"], amounts.memory_bytes)
