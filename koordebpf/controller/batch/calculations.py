"""Batch and mid resources of all Nodes, computed again only where something has changed. Sends no request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from koordebpf.controller.batch.facts import MetricRecord, PodRecord, TopologyRecord, node_facts
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.policy.batch.facts import NodeFacts, Usage
from koordebpf.policy.batch.formulas import NodeResult, node_result
from koordebpf.policy.batch.zones import zone_results
from koordebpf.slo.manager.effective import EffectiveKey
from koordebpf.slo.manager.node_colocation import NodeColocation, node_colocation
from koordebpf.units import NS_PER_S


class Tables(Protocol):
    """What is known beside the Nodes; kube.colocation.source.ColocationSource has it."""

    def changed(self) -> set[str]:
        """Return the Nodes of which something has changed since the last call."""

    def of(self, node: str) -> tuple[tuple[PodRecord, ...], MetricRecord | None, TopologyRecord | None]:
        """Return the pods, the NodeMetric and the topology of one."""


class Computed(msgspec.Struct, frozen=True):
    """One Node: what it should have, by which strategy. `problems` of its labels and annotations.

    `is_held`: its strategy is not known, and it keeps what it has.
    """

    node: ColocationNode
    strategy: NodeColocation
    result: NodeResult
    metric: MetricRecord | None
    topology: TopologyRecord | None = None
    problems: tuple[str, ...] = ()
    is_held: bool = False


class Calculations:
    """The last result of every Node."""

    def __init__(self) -> None:
        self.computed: dict[str, Computed] = {}
        self._config: EffectiveKey | None = None
        self._facts: dict[str, tuple[ColocationNode, TopologyRecord | None, NodeFacts]] = {}
        self._stale_ns: dict[str, int] = {}  # Node → when its report will be too old, CLOCK_REALTIME
        self._earliest_ns = 0  # of them, or earlier

    def update(self, nodes: Iterable[ColocationNode], tables: Tables, config: EffectiveKey, now_ns: int) -> list[str]:
        """Compute what has changed; return the names of those Nodes. `now_ns` is CLOCK_REALTIME.

        Cost:    60 µs each Node that has changed, 0.2 µs each other.
        """
        known = {node.name: node for node in nodes}
        for gone in self.computed.keys() - known.keys():
            for kept in (self.computed, self._facts, self._stale_ns):
                kept.pop(gone, None)
        changed = tables.changed()
        if config is not self._config:
            changed, self._config = set(known), config
        changed |= self._turned_stale(now_ns)
        computed = self.computed
        dirty = [
            name
            for name, node in known.items()
            if name in changed or (old := computed.get(name)) is None or old.node is not node
        ]
        for name in dirty:
            self._compute(known[name], tables, config, now_ns)
        return dirty

    def _compute(self, node: ColocationNode, tables: Tables, config: EffectiveKey, now_ns: int) -> None:
        name = node.name
        pods, metric, topology = tables.of(name)
        known = self._facts.get(name)
        if known is None or known[0] is not node or known[1] is not topology:
            facts = node_facts(node, topology.zones if topology else ())
            self._facts[name] = (node, topology, facts)
        else:
            facts = known[2]
        resolved = node_colocation(config, node.labels or {}, node.annotations)
        usage = metric.usage if metric else None
        result = whole_result(facts, pods, usage, resolved.strategy, now_ns)
        self.computed[name] = Computed(
            node,
            resolved.strategy,
            result,
            metric,
            topology,
            (*resolved.problems, *facts.problems),
            resolved.is_held,
        )
        self._stale_ns.pop(name, None)
        if usage is not None and usage.updated_ns is not None and not result.reset:
            stale_ns = usage.updated_ns + resolved.strategy.degradeTimeMinutes * 60 * NS_PER_S
            self._stale_ns[name] = stale_ns
            self._earliest_ns = min(self._earliest_ns, stale_ns)

    def _turned_stale(self, now_ns: int) -> set[str]:
        if now_ns <= self._earliest_ns:
            return set()
        self._earliest_ns = min(self._stale_ns.values(), default=now_ns)
        if now_ns <= self._earliest_ns:
            return set()
        return {name for name, stale_ns in self._stale_ns.items() if now_ns > stale_ns}


def whole_result(
    facts: NodeFacts, pods: Sequence[PodRecord], usage: Usage | None, strategy: NodeColocation, now_ns: int
) -> NodeResult:
    """Return the four resources of a Node with those of its zones. `now_ns` is CLOCK_REALTIME."""
    result = node_result(facts, pods, usage, strategy, now_ns)
    if not facts.zones or usage is None or result.reset:
        return result
    return msgspec.structs.replace(result, zones=zone_results(facts, pods, usage, strategy))


def amounts_of(computed: Computed) -> Mapping[str, int | None]:
    """Return resource → what a Node should have of it."""
    return {name: each.result for name, each in computed.result.calculations.items()}
