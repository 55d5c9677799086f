"""What is written into a Node, as one value: the four resources, and the annotation with the sums before third parties.

It is compared whole: an amount would become stale where only the one beside it is compared. One Node is read and
computed once, as the controller would, for a person.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from koordebpf.controller.batch.calculations import whole_result
from koordebpf.controller.batch.facts import batch_amounts, node_facts, read_node_metric, read_pod, read_topology
from koordebpf.errors import ConfigError
from koordebpf.kube.colocation.nodes import ColocationNode, decode_colocation_node
from koordebpf.kube.colocation.reads import NodeReads
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName
from koordebpf.kube.http.transport import Transport
from koordebpf.policy.batch.formulas import NodeResult
from koordebpf.policy.batch.zones import Amounts, sync_reason
from koordebpf.quantity import parse_quantity
from koordebpf.report.pages.batch import ExplainedNode
from koordebpf.slo.convert import decode_object
from koordebpf.slo.manager.node_colocation import effective_colocation, node_colocation
from koordebpf.slo.manager.shapes import COLOCATION_KEY
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY
from koordebpf.units import NS_PER_S

ORIGIN_ANNOTATION: Final = "node.koordinator.sh/originExtendedAllocatable"
_ORIGIN: Final = {name: f"{ORIGIN_ANNOTATION} {name}" for name in (BATCH_CPU, BATCH_MEMORY)}


def explain(
    transport: Transport, node_name: str, resource: str | None = None, config_map: ConfigMapName = CONFIG_MAP
) -> ExplainedNode:
    """Return what the Node should have of one resource, or of all four, and what it has.

    Raises:  KubeError: something cannot be read. KubeGone: there is no such Node. ConfigError: colocation-config.
    """
    reads = NodeReads(transport, node_name)
    node = reads.node(decode_colocation_node)
    pods = tuple(pod for pod in reads.pods(read_pod) if pod.node == node_name)
    metric, topology = reads.node_metric(read_node_metric), reads.topology(read_topology)
    config = effective_colocation(reads.config(config_map).get(COLOCATION_KEY))
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


def wanted_amounts(result: NodeResult) -> dict[str, int | None]:
    """Return resource → what a Node should have of it; of the annotation's under the annotation's name too."""
    origin = (None, None) if result.reset else (result.origin.cpu_millicpu, result.origin.memory_bytes)
    amounts = {name: each.result for name, each in result.calculations.items()}
    return {**amounts, **dict(zip(_ORIGIN.values(), origin, strict=True))}


def written_amounts(node: ColocationNode, wanted: Amounts) -> dict[str, int | None]:
    """Return what a Node has of `wanted`. Koordinator's manager leaves an annotation of zeros where it wants none."""
    amounts: dict[str, int | None] = dict(batch_amounts(node))
    there = _origin_of(node)
    for name, key in _ORIGIN.items():
        amounts[key] = None if wanted[key] is None and there[name] == 0 else there[name]
    return amounts


def origin_annotation(node: ColocationNode, result: NodeResult) -> dict[str, str | None]:
    """Return the annotation to be set, or to be removed."""
    if result.reset:
        return {ORIGIN_ANNOTATION: None} if ORIGIN_ANNOTATION in (node.annotations or {}) else {}
    resources = {BATCH_CPU: str(result.origin.cpu_millicpu), BATCH_MEMORY: str(result.origin.memory_bytes)}
    return {ORIGIN_ANNOTATION: msgspec.json.encode({"resources": resources}).decode()}


# An amount that cannot be read is none: it is written again.
def _origin_of(node: ColocationNode) -> Mapping[str, int | None]:
    text = (node.annotations or {}).get(ORIGIN_ANNOTATION)
    found: dict[str, int | None] = dict.fromkeys(_ORIGIN)
    if text is None:
        return found
    try:
        resources = decode_object(text, ORIGIN_ANNOTATION).get("resources")
        for name in found:
            found[name] = int(parse_quantity(resources[name])) if isinstance(resources, dict) else None
    except (ConfigError, KeyError):
        return dict.fromkeys(_ORIGIN)
    return found
