"""Writes what differs, at a pace: first what falls, for pods must not be scheduled onto what is no longer there.

What fails for one object waits on its own; what would fail for all rests all. In a dry run it says what it would write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from koordebpf.controller.batch.calculations import Calculations, Computed, amounts_of
from koordebpf.controller.batch.facts import ORIGIN_ANNOTATION, batch_amount
from koordebpf.controller.batch.metric_specs import MetricStep, metric_step
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.kube.colocation.writes import WrittenMetric
from koordebpf.kube.http.backoff import Backoff
from koordebpf.policy.batch.facts import CpuMemory
from koordebpf.policy.batch.sync import sync_reason
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

# Why 50: 5,000 Nodes are written within 100 s of a start; koord-manager may send 30 requests a second.
RATE_PER_S: Final = 50
_SLICE_NS: Final = 2 * NS_PER_S  # then the loop looks at what changed meanwhile
_TRUST_NS: Final = 30 * NS_PER_S  # a write shows in the watch long before; then the watch is believed
_FIRST_S, _CAP_S = 1.0, 300.0
_REST_S: Final = 5.0
_DENIED_S: Final = 30.0
_MAX_PROBLEMS: Final = 5  # sentences; a thousand Nodes may fail for the same reason


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


class Tally(msgspec.Struct):
    """Since the start: writes by their outcome."""

    nodes: int = 0
    resets: int = 0
    metrics: int = 0
    failures: int = 0


class _Failure(msgspec.Struct):
    backoff: Backoff
    due_ns: int = 0
    sentence: str = ""


class _Sent(msgspec.Struct):
    node: ColocationNode  # as it was when this was sent
    amounts: Mapping[str, int | None]
    at_ns: int


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
        self._failures: dict[str, _Failure] = {}
        self._logged: dict[str, MetricStep] = {}  # of a dry run
        self._rests_until_ns = 0
        self._allowance = (0, float(RATE_PER_S))  # when it was counted, and writes allowed then

    def publish(self, calculations: Calculations, changed: Iterable[str], may_write: Callable[[], bool]) -> None:
        """Write what differs of the Nodes that changed, and of those that differed before, as long as `may_write`."""
        computed = calculations.computed
        now_ns = self._now_ns()
        for of_nodes in (self._sent, self._failures, self._logged):
            for gone in of_nodes.keys() - computed.keys():
                del of_nodes[gone]
        looked = {name for name in {*self._differing, *changed} if name in computed}
        self._differing, self.pending = set(), {}
        self.foreign = sum(bool(each.node.manager) for each in computed.values()) if not self._adopts else 0
        work: list[tuple[int, str, MetricStep | None]] = []
        for name in looked:
            each = computed[name]
            step = metric_step(each, adopts=self._adopts)
            reason = self._reason(each, now_ns)
            if reason:
                self.pending[name] = reason
            if step is not None or reason:
                work.append((_urgency(each) if reason else 3, name, step))
        work.sort(key=lambda each: each[:2])
        for _, name, step in work:
            if not self._is_done(computed[name], step, now_ns, may_write):
                self._differing.add(name)

    def hold(self, changed: Iterable[str]) -> None:
        """Remember Nodes that changed while nothing may be written."""
        self._differing.update(changed)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why what is pending was not written."""
        return tuple(dict.fromkeys(each.sentence for each in self._failures.values() if each.sentence))[:_MAX_PROBLEMS]

    # Why the Node is to be written; what differs only a little is looked at again.
    def _reason(self, computed: Computed, now_ns: int) -> str:
        node = computed.node
        if node.manager and not self._adopts:
            return ""
        wanted, sent = amounts_of(computed), self._sent.get(node.name)
        current = {name: batch_amount(node, name) for name in wanted}
        if sent is not None and sent.node is node and now_ns - sent.at_ns < _TRUST_NS:
            current = dict(sent.amounts)
        if current != wanted:
            self._differing.add(node.name)
        strategy = computed.strategy
        since_ns = now_ns - sent.at_ns if sent else None
        at_most_ns = strategy.updateTimeThresholdSeconds * NS_PER_S
        return sync_reason(current, wanted, strategy.resourceDiffThreshold, since_ns, at_most_ns)

    def _is_done(
        self, computed: Computed, step: MetricStep | None, began_ns: int, may_write: Callable[[], bool]
    ) -> bool:
        name, now_ns = computed.node.name, self._now_ns()
        failure = self._failures.get(name)
        due_ns = max(self._rests_until_ns, failure.due_ns if failure else 0)
        if not due_ns <= now_ns < began_ns + _SLICE_NS or not may_write() or not self._is_allowed(now_ns):
            return False
        try:
            if step is not None:
                self._write_metric(step)
            if name in self.pending:
                self._write_node(computed, self.pending[name])
        except KubeError as error:
            self._after(error, name)
            return False
        self._failures.pop(name, None)
        if self.pending.pop(name, None) is not None:
            self._differing.discard(name)
        # A small difference waits for its time.
        return name not in self._differing

    def _write_node(self, computed: Computed, reason: str) -> None:
        node, wanted = computed.node, amounts_of(computed)
        if self._writer is None:
            sent = self._sent.get(node.name)
            if sent is None or dict(sent.amounts) != dict(wanted):
                log.info("would set %s of Node %s: %s", _shown(wanted), node.name, computed.result.reset or reason)
        else:
            self._writer.patch_node(node.name, wanted, _annotations(computed))
            self.tally.nodes += 1
            self.tally.resets += bool(computed.result.reset)
            log.debug("set %s of Node %s: %s", _shown(wanted), node.name, computed.result.reset or reason)
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

    def _after(self, error: KubeError, name: str) -> None:
        now_ns = self._now_ns()
        failure = self._failures.setdefault(name, _Failure(Backoff(_FIRST_S, _CAP_S)))
        failure.due_ns = now_ns + int(failure.backoff.next_s() * NS_PER_S)
        # Another was faster, or it is gone: the watch brings what is newer, and the next try is made from that.
        if isinstance(error, KubeConflict | KubeGone):
            return
        self.tally.failures += 1
        failure.sentence = f"Node {name}: {error}"
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

    def _is_allowed(self, now_ns: int) -> bool:
        at_ns, allowed = self._allowance
        allowed = min(float(RATE_PER_S), allowed + (now_ns - at_ns) / NS_PER_S * RATE_PER_S)
        if allowed < 1:
            self._allowance = (now_ns, allowed)
            return False
        self._allowance = (now_ns, allowed - 1)
        return True


# 0: reset, 1: something falls, 2: it grows.
def _urgency(computed: Computed) -> int:
    if computed.result.reset:
        return 0
    current = {name: batch_amount(computed.node, name) for name in amounts_of(computed)}
    falls = any((current[name] or 0) > (amount or 0) for name, amount in amounts_of(computed).items())
    return 1 if falls else 2


def _annotations(computed: Computed) -> dict[str, str | None]:
    if computed.result.reset:
        return {ORIGIN_ANNOTATION: None} if ORIGIN_ANNOTATION in (computed.node.annotations or {}) else {}
    origin: CpuMemory = computed.result.origin
    resources = {BATCH_CPU: str(origin.cpu_millicpu), BATCH_MEMORY: str(origin.memory_bytes)}
    return {ORIGIN_ANNOTATION: msgspec.json.encode({"resources": resources}).decode()}


def _shown(amounts: Mapping[str, int | None]) -> str:
    return ", ".join(
        f"{name.partition('/')[2]} {'none' if amount is None else amount}" for name, amount in amounts.items()
    )
