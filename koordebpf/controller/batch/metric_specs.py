"""The NodeMetric of each Node: there while colocation is on for it, and its agent is asked for what the strategy says.

Source: koordinator pkg/slo-controller/nodemetric/nodemetric_controller.go.
"""

from __future__ import annotations

import msgspec

from koordebpf.controller.batch.calculations import Computed
from koordebpf.controller.desired import MANAGED_BY, OURS
from koordebpf.kube.cache.node_metric import AggregatePolicy, CollectPolicy, NodeMetricSpec
from koordebpf.kube.clients.nodeslos import NodeSLOMeta, Owner
from koordebpf.kube.colocation.writes import WrittenMetric


class MetricStep(msgspec.Struct, frozen=True):
    """What is to be done with a NodeMetric: `verb` create, update or delete, and the object to send."""

    verb: str
    metric: WrittenMetric


def is_ours(metric: WrittenMetric) -> bool:
    """Tell whether this controller made the object."""
    return (metric.metadata.labels or {}).get(MANAGED_BY) == OURS


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


def collect_policy(computed: Computed) -> CollectPolicy:
    """Return what the agent is asked for."""
    strategy = computed.strategy
    return CollectPolicy(
        strategy.metricAggregateDurationSeconds,
        strategy.metricReportIntervalSeconds,
        AggregatePolicy(strategy.metricAggregatePolicy.durations),
        strategy.metricMemoryCollectPolicy,
    )


def _wanted(computed: Computed, current: WrittenMetric | None) -> WrittenMetric:
    node = computed.node
    meta = current.metadata if current else NodeSLOMeta(name=node.name)
    owner = Owner(apiVersion="v1", kind="Node", name=node.name, uid=node.uid)
    others = tuple(each for each in meta.ownerReferences if each.kind != "Node")
    meta = msgspec.structs.replace(
        meta, labels={**(meta.labels or {}), MANAGED_BY: OURS}, ownerReferences=(owner, *others)
    )
    return WrittenMetric(meta, NodeMetricSpec(collect_policy(computed)))
