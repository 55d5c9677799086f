"""Writes what differs, at a pace: first what falls, for pods must not be scheduled onto what is no longer there.

What fails for one object waits on its own; what would fail for all rests all. In a dry run it says what it would write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from koordebpf.controller.batch.calculations import Calculations, Computed, amounts_of
from koordebpf.controller.batch.facts import TopologyRecord
from koordebpf.controller.batch.metric_specs import MetricStep, metric_step
from koordebpf.controller.batch.pace import WritePace
from koordebpf.controller.batch.written import origin_annotation, wanted_amounts, written_amounts
from koordebpf.controller.batch.zone_steps import wanted_zones, with_zones, zone_reason
from koordebpf.errors import KubeError
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.kube.colocation.writes import WrittenMetric
from koordebpf.policy.batch.sync import sync_reason
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

_SLICE_NS: Final = 2 * NS_PER_S  # then the loop looks at what changed meanwhile
_TRUST_NS: Final = 30 * NS_PER_S  # a write shows in the watch long before; then the watch is believed
_NOT_URGENT: Final = 3


class Writer(Protocol):
    """The requests; kube.colocation.writes.ColocationWriter has them."""

    def patch_node(self, name: str, amounts: Mapping[str, int | None], annotations: Mapping[str, str | None]) -> None:
        """Set or remove resources and annotations of a Node."""

    def create_metric(self, metric: WrittenMetric) -> WrittenMetric:
        """Make a NodeMetric."""

    def update_metric(self, metric: WrittenMetric) -> WrittenMetric:
        """Put it in place of the version it was made from."""

    def delete_metric(self, name: str, uid: str) -> None:
        """Delete it."""

    def change_topology(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Put a changed NodeResourceTopology in place of the one that is there."""


class Tally(msgspec.Struct):
    """Since the start: writes by their outcome."""

    nodes: int = 0
    metrics: int = 0
    topologies: int = 0


class _Sent(msgspec.Struct):
    node: ColocationNode  # as it was when this was sent
    amounts: Mapping[str, int | None]
    at_ns: int


class _Work(msgspec.Struct):
    computed: Computed
    step: MetricStep | None
    has_zones: bool
    urgency: int


class Publisher:
    """Remembers what it wrote. `writer` None: dry run.

    Attributes:
        foreign: Nodes whose batch and mid resources a Koordinator manager wrote, which are left alone.
        pending: Node → why it is still to be written.
    """

    def __init__(self, writer: Writer | None, *, adopts: bool, now_ns: Callable[[], int]) -> None:
        self.tally = Tally()
        self.foreign = 0
        self.pending: dict[str, str] = {}
        self._writer = writer
        self._adopts = adopts
        self._now_ns = now_ns
        self._differing: set[str] = set()  # Nodes to look at again though nothing changed
        self._sent: dict[str, _Sent] = {}
        self._zones_sent: dict[str, tuple[TopologyRecord, int]] = {}  # as it was when its zones were sent, and when
        self._logged: dict[str, MetricStep] = {}  # of a dry run
        self._pace = WritePace()

    def publish(self, calculations: Calculations, changed: Iterable[str], may_write: Callable[[], bool]) -> None:
        """Write what differs of the Nodes that changed, and of those that differed before, as long as `may_write`."""
        computed = calculations.computed
        now_ns = self._now_ns()
        for of_nodes in (self._sent, self._zones_sent, self._logged):
            for gone in of_nodes.keys() - computed.keys():
                of_nodes.pop(gone, None)
        self._pace.forget_all_but(computed)
        looked = {name for name in {*self._differing, *changed} if name in computed}
        self._differing, self.pending = set(), {}
        self.foreign = sum(bool(each.node.manager) for each in computed.values()) if not self._adopts else 0
        work = [each for name in looked if (each := self._work(computed[name], now_ns)) is not None]
        work.sort(key=lambda each: (each.urgency, each.computed.node.name))
        for each in work:
            self._do(each, now_ns, may_write)

    def hold(self, changed: Iterable[str]) -> None:
        """Remember Nodes that changed while nothing may be written."""
        self._differing.update(changed)

    @property
    def failures(self) -> int:
        """Writes that failed since the start."""
        return self._pace.failed

    @property
    def problems(self) -> tuple[str, ...]:
        """Why what is pending was not written."""
        return self._pace.problems

    # Why the Node is to be written; what differs only a little is looked at again.
    def _reason(self, computed: Computed, now_ns: int) -> str:
        node = computed.node
        if node.manager and not self._adopts:
            return ""
        wanted, sent = wanted_amounts(computed.result), self._sent.get(node.name)
        current = written_amounts(node, wanted)
        if sent is not None and sent.node is node and now_ns - sent.at_ns < _TRUST_NS:
            current = dict(sent.amounts)
        if current != wanted:
            self._differing.add(node.name)
        strategy = computed.strategy
        since_ns = now_ns - sent.at_ns if sent else None
        at_most_ns = strategy.updateTimeThresholdSeconds * NS_PER_S
        return sync_reason(current, wanted, strategy.resourceDiffThreshold, since_ns, at_most_ns)

    # What is to be done for a Node; None: nothing.
    def _work(self, computed: Computed, now_ns: int) -> _Work | None:
        name = computed.node.name
        if computed.is_held:
            return None
        reason = self._reason(computed, now_ns)
        if reason:
            self.pending[name] = reason
        zones = self._zone_reason(computed, now_ns)
        step = metric_step(computed, adopts=self._adopts)
        if not reason and not zones and step is None:
            return None
        return _Work(computed, step, bool(zones), _urgency(computed) if reason else _NOT_URGENT)

    def _zone_reason(self, computed: Computed, now_ns: int) -> str:
        node, topology, sent = computed.node, computed.topology, self._zones_sent.get(computed.node.name)
        if topology is None or (node.manager and not self._adopts):
            return ""
        if sent is not None and sent[0] is topology and now_ns - sent[1] < _TRUST_NS:
            return ""
        return zone_reason(computed, now_ns - sent[1] if sent else None)

    # The Node first: what it has must not depend on whether anything else can be written.
    def _do(self, work: _Work, began_ns: int, may_write: Callable[[], bool]) -> None:
        name, now_ns = work.computed.node.name, self._now_ns()
        self._differing.add(name)
        if now_ns >= began_ns + _SLICE_NS or not may_write() or not self._pace.take(name, now_ns):
            return
        try:
            if name in self.pending:
                self._write_node(work.computed, self.pending.pop(name))
            if work.step is not None:
                self._write_metric(work.step)
            if work.has_zones:
                self._write_zones(work.computed)
        except KubeError as error:
            self._pace.after(error, name, now_ns)
            return
        self._pace.succeeded(name)

    def _write_zones(self, computed: Computed) -> None:
        name, topology = computed.node.name, computed.topology
        if topology is None:
            return
        if self._writer is not None:
            wanted = wanted_zones(computed)
            self._writer.change_topology(name, lambda written: with_zones(written, wanted))
            self.tally.topologies += 1
        self._zones_sent[name] = (topology, self._now_ns())

    def _write_node(self, computed: Computed, reason: str) -> None:
        node, shown = computed.node, _shown(amounts_of(computed))
        wanted = wanted_amounts(computed.result)
        if self._writer is None:
            sent = self._sent.get(node.name)
            if sent is None or dict(sent.amounts) != dict(wanted):
                log.info("would set %s of Node %s: %s", shown, node.name, computed.result.reset or reason)
        else:
            self._writer.patch_node(node.name, amounts_of(computed), origin_annotation(node, computed.result))
            self.tally.nodes += 1
            log.debug("set %s of Node %s: %s", shown, node.name, computed.result.reset or reason)
        self._sent[node.name] = _Sent(node, wanted, self._now_ns())

    def _write_metric(self, step: MetricStep) -> None:
        metric, meta = step.metric, step.metric.metadata
        if self._writer is None:
            if self._logged.get(meta.name) != step:
                self._logged[meta.name] = step
                log.info("would %s NodeMetric %s", step.verb, meta.name)
            return
        match step.verb:
            case "create":
                self._writer.create_metric(metric)
            case "update":
                self._writer.update_metric(metric)
            case _:
                self._writer.delete_metric(meta.name, meta.uid)
        self.tally.metrics += 1


# 0: reset, 1: something falls, 2: it grows.
def _urgency(computed: Computed) -> int:
    if computed.result.reset:
        return 0
    wanted = wanted_amounts(computed.result)
    current = written_amounts(computed.node, wanted)
    falls = any((current[name] or 0) > (amount or 0) for name, amount in wanted.items())
    return 1 if falls else 2


def _shown(amounts: Mapping[str, int | None]) -> str:
    return ", ".join(
        f"{name.partition('/')[2]} {'none' if amount is None else amount}" for name, amount in amounts.items()
    )
