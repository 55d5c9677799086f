"""The batch and mid resources of one Node, read and computed once, as the controller would."""

from __future__ import annotations

import time

import msgspec

from koordebpf.controller.batch.calculations import whole_result
from koordebpf.controller.batch.facts import node_facts, read_node_metric, read_pod, read_topology
from koordebpf.controller.batch.written import wanted_amounts, written_amounts
from koordebpf.kube.colocation.nodes import decode_colocation_node
from koordebpf.kube.colocation.reads import NodeReads
from koordebpf.kube.http.transport import Transport
from koordebpf.policy.batch.zones import sync_reason
from koordebpf.report.pages.batch import ExplainedNode
from koordebpf.slo.manager.keys import COLOCATION_KEY
from koordebpf.slo.manager.node_colocation import effective_colocation, node_colocation
from koordebpf.units import NS_PER_S


def explain(transport: Transport, node_name: str, resource: str | None = None) -> ExplainedNode:
    """Return what the Node should have of one resource, or of all four, and what it has.

    Raises:  KubeError: something cannot be read. KubeGone: there is no such Node. ConfigError: colocation-config.
    """
    reads = NodeReads(transport, node_name)
    node = reads.node(decode_colocation_node)
    pods = tuple(pod for pod in reads.pods(read_pod) if pod.node == node_name)
    metric, topology = reads.node_metric(read_node_metric), reads.topology(read_topology)
    config = effective_colocation(reads.config().get(COLOCATION_KEY))
    resolved = node_colocation(config, node.labels or {}, node.annotations)
    facts = node_facts(node, topology.zones if topology else ())
    usage, now_ns = metric.usage if metric else None, time.time_ns()
    result = whole_result(facts, pods, usage, resolved.strategy, now_ns)
    wanted = wanted_amounts(result)
    has = written_amounts(node, wanted)
    strategy = resolved.strategy
    is_same = has == wanted
    waits = "" if is_same else sync_reason(has, wanted, strategy.resourceDiffThreshold, 0, 1)
    if waits:
        waits = f"to be written: {waits}"
    elif not is_same:
        waits = (
            f"the difference is at most resourceDiffThreshold ({strategy.resourceDiffThreshold:g}): it is written"
            f" updateTimeThresholdSeconds ({strategy.updateTimeThresholdSeconds}) after the last write"
        )
    if resolved.is_held:
        waits = "not written: what colocation-config says of this Node is unusable"
    if node.manager:
        waits = f"written by {node.manager}, by managedFields. {waits}".strip()
    shown = [each for name, each in result.calculations.items() if resource in (None, name)]
    return ExplainedNode(
        node=node_name,
        calculations=shown,
        has={each.resource: has[each.resource] for each in shown},
        waits=waits,
        report_age_s=(now_ns - usage.updated_ns) / NS_PER_S if usage and usage.updated_ns is not None else None,
        pods=len(pods),
        zones=result.zones,
        origins=resolved.origins,
        values={field: msgspec.to_builtins(getattr(strategy, field)) for field in resolved.origins},
        problems=(*map(str, config.errors), *resolved.problems, *facts.problems),
    )
