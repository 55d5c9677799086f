"""The NodeMetric of each Node: there while colocation is on for it, and its agent is asked for what the strategy says.

Source: koordinator pkg/slo-controller/nodemetric/nodemetric_controller.go.
"""

from __future__ import annotations

import msgspec

from koordebpf.controller.batch.calculations import Computed
from koordebpf.controller.desired import is_ours, owned_by
from koordebpf.kube.cache.node_metric import AggregatePolicy, CollectPolicy, NodeMetricSpec
from koordebpf.kube.colocation.writes import WrittenMetric


class MetricStep(msgspec.Struct, frozen=True):
    """What is to be done with a NodeMetric: `verb` create, update or delete, and the object to send."""

    verb: str
    metric: WrittenMetric


def metric_step(computed: Computed, *, adopts: bool) -> MetricStep | None:
    """Return what has to be done; None: nothing. One that another made is left alone unless `adopts`.

    It is owned by its Node: garbage collection deletes it with that.
    """
    current = computed.metric.written if computed.metric else None
    if current is not None and not is_ours(current) and not adopts:
        return None
    if not computed.strategy.enable:
        return MetricStep("delete", current) if current is not None and is_ours(current) else None
    wanted = _wanted(computed, current)
    if current is None:
        return MetricStep("create", wanted)
    return None if wanted == current else MetricStep("update", wanted)


def _collect_policy(computed: Computed) -> CollectPolicy:
    strategy = computed.strategy
    return CollectPolicy(
        strategy.metricAggregateDurationSeconds,
        strategy.metricReportIntervalSeconds,
        AggregatePolicy(strategy.metricAggregatePolicy.durations),
        strategy.metricMemoryCollectPolicy,
    )


def _wanted(computed: Computed, current: WrittenMetric | None) -> WrittenMetric:
    meta = owned_by(computed.node, current.metadata if current else None)
    return WrittenMetric(meta, NodeMetricSpec(_collect_policy(computed)))
