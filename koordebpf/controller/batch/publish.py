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
from koordebpf.controller.batch.written import origin_annotation, wanted_amounts, written_amounts
from koordebpf.controller.reconcile import is_ours, owned_by
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.kube.cache.node_metric import AggregatePolicy, CollectPolicy, NodeMetricSpec
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.kube.colocation.writes import WrittenMetric
from koordebpf.kube.http.refusal import Backoff
from koordebpf.policy.batch.zones import sync_reason
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY
from koordebpf.units import NS_PER_S

_FIELDS = ("capacity", "allocatable", "available")
# Why 50: 5,000 Nodes are written within 100 s of a start; koord-manager may send 30 requests a second.
RATE_PER_S: Final = 50
_FIRST_S, _CAP_S = 1.0, 300.0
_REST_S: Final = 5.0
_DENIED_S: Final = 30.0
_MAX_PROBLEMS: Final = 5  # sentences; a thousand Nodes may fail for the same reason
log = logging.getLogger("koordebpf")
_SLICE_NS: Final = 2 * NS_PER_S  # then the loop looks at what changed meanwhile
_TRUST_NS: Final = 30 * NS_PER_S  # a write shows in the watch long before; then the watch is believed
_NOT_URGENT: Final = 3


# The NodeMetric of each Node: there while colocation is on for it, and its agent is asked for what the strategy says.
#
# Source: koordinator pkg/slo-controller/nodemetric/nodemetric_controller.go.


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


# Batch resources of NUMA zones, in the NodeResourceTopology of a Node: when they are to be written, and how.
#
# Source: koordinator pkg/slo-controller/noderesource/plugins/util/util.go, UpdateNRTZoneListIfNeeded.


def wanted_zones(computed: Computed) -> dict[str, int]:
    """Return zone/resource → what it should have; of a Node that is reset nothing of what there is.

    As Koordinator: a zone's entry is set to zero, and not removed.
    """
    topology = computed.topology
    if topology is None or not topology.zones:
        return {}
    if computed.result.reset:
        return {key: 0 for key, amount in topology.batch.items() if amount}
    return {
        key: amount
        for zone, both in computed.result.zones.items()
        for key, amount in ((f"{zone}/{BATCH_CPU}", both.cpu_millicpu), (f"{zone}/{BATCH_MEMORY}", both.memory_bytes))
    }


def zone_reason(computed: Computed, since_ns: int | None) -> str:
    """Return why the topology has to be written; "": it need not."""
    wanted = wanted_zones(computed)
    if not wanted or computed.topology is None:
        return ""
    strategy = computed.strategy
    at_most_ns = strategy.updateTimeThresholdSeconds * NS_PER_S
    return sync_reason(computed.topology.batch, wanted, strategy.resourceDiffThreshold, since_ns, at_most_ns)


def with_zones(topology: dict[str, Any], wanted: Mapping[str, int]) -> dict[str, Any]:
    """Return a NodeResourceTopology, as decoded from JSON, with these amounts; whatever else it has stays.

    A zone that is not there is passed over, and what is no list of objects is left as it is.
    """
    zones = topology.get("zones")
    return {**topology, "zones": [_zone(zone, wanted) for zone in zones]} if isinstance(zones, list) else topology


def _zone(zone: Any, wanted: Mapping[str, int]) -> Any:
    if not isinstance(zone, dict):
        return zone
    amounts = {name: wanted.get(f"{zone.get('name')}/{name}") for name in (BATCH_CPU, BATCH_MEMORY)}
    made = {name: str(amount) for name, amount in amounts.items() if amount is not None}
    there = zone.get("resources")
    resources = [each for each in there if isinstance(each, dict)] if isinstance(there, list) else []
    kept = [each for each in resources if each.get("name") not in made]
    kept += [{"name": name, **dict.fromkeys(_FIELDS, amount)} for name, amount in made.items()]
    return {**zone, "resources": sorted(kept, key=lambda each: str(each.get("name")))} if made else zone


class _Failure(msgspec.Struct):
    backoff: Backoff
    due_ns: int = 0
    sentence: str = ""


class WritePace:
    """What fails for one Node waits on its own, longer each time; what would fail for all rests all."""

    def __init__(self) -> None:
        self.failed = 0  # since the start
        self._failures: dict[str, _Failure] = {}
        self._rests_until_ns = 0
        self._allowance = (0, float(RATE_PER_S))  # when it was counted, and writes allowed then

    @property
    def problems(self) -> tuple[str, ...]:
        """Why what is pending was not written."""
        return tuple(dict.fromkeys(each.sentence for each in self._failures.values() if each.sentence))[:_MAX_PROBLEMS]

    def admit(self, node: str, now_ns: int) -> bool:
        """Tell whether this Node may be written now, and count it."""
        failure = self._failures.get(node)
        if now_ns < self._rests_until_ns or (failure is not None and now_ns < failure.due_ns):
            return False
        at_ns, allowed = self._allowance
        allowed = min(float(RATE_PER_S), allowed + (now_ns - at_ns) / NS_PER_S * RATE_PER_S)
        is_allowed = allowed >= 1
        self._allowance = (now_ns, allowed - is_allowed)
        return is_allowed

    def succeeded(self, node: str) -> None:
        """Note that a Node was written."""
        self._failures.pop(node, None)

    def after(self, error: KubeError, node: str, now_ns: int) -> None:
        """Note that a write failed."""
        failure = self._failures.setdefault(node, _Failure(Backoff(_FIRST_S, _CAP_S)))
        failure.due_ns = now_ns + int(failure.backoff.next_s() * NS_PER_S)
        # Another was faster, or it is gone: the watch brings what is newer, and the next try is made from that.
        if isinstance(error, KubeConflict | KubeGone):
            return
        self.failed += 1
        failure.sentence = f"Node {node}: {error}"
        match error:
            case KubeDenied():
                rest_s = _DENIED_S
            case KubeBusy():
                rest_s = error.retry_after_s or _REST_S
            case KubeError(retry=True):
                rest_s = _FIRST_S
            case _:
                return
        self._rests_until_ns = now_ns + int(rest_s * NS_PER_S)

    def forget_all_but(self, nodes: Iterable[str]) -> None:
        """Forget Nodes that are gone."""
        for gone in self._failures.keys() - set(nodes):
            del self._failures[gone]


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
        if now_ns >= began_ns + _SLICE_NS or not may_write() or not self._pace.admit(name, now_ns):
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
