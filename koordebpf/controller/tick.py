"""One look at the cluster: settings out of the ConfigMap, NodeSLOs out of the settings, and what to say of both."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from koordebpf.controller.reconcile import Reconciler, Round
from koordebpf.controller.settings_in_force import SettingsInForce
from koordebpf.kube.clients.nodeslos import ControllerSource, ControllerState, NodeSLOWriter
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.controller import ControllerMetrics
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.controller.batch.part import BatchResources

log = logging.getLogger("koordebpf")

IDLE_NS: Final = 10 * NS_PER_S  # a sign of life for /healthz where nothing happens
_NO_CRD: Final = (
    "the cluster does not serve NodeSLO: install its CRD (kubectl apply --server-side -k deploy/bootstrap, "
    "or what koordebpf slo crd prints)"
)


class Leadership(msgspec.Struct, frozen=True):
    """`may_write`: no other controller leads now, and this one is not to end. `problem` of the election; "": none."""

    may_write: Callable[[], bool]
    problem: Callable[[], str] = lambda: ""


class Controller:
    """The state between two looks. `writer` None: dry run. `batch`: batch and mid resources, if asked for."""

    def __init__(
        self,
        source: ControllerSource,
        writer: NodeSLOWriter | None,
        reconciler: Reconciler,
        leadership: Leadership,
        metrics: ControllerMetrics,
        health: Health,
    ) -> None:
        self._source = source
        self._is_dry_run = writer is None
        self._reconciler = reconciler
        self._leadership = leadership
        self._metrics = metrics
        self._health = health
        self._config = SettingsInForce(writer)
        self._said: frozenset[str] = frozenset()
        self._written = (0, 0)
        self.batch: BatchResources | None = None

    def tick(self) -> int:
        """Look once, write what differs; return when to look again (CLOCK_MONOTONIC) though nothing wakes."""
        began_ns = time.monotonic_ns()
        state = self._source.state()
        found = Round()
        if state.is_synced:
            settings = self._config.take(state)
            if not state.serves_nodeslos:
                found = Round(pending=len(state.nodes), problems=(_NO_CRD,))
            elif self._leadership.may_write():
                found = self._reconciler.round(state, settings, self._leadership.may_write)
                self._config.record_events(began_ns)
        looked = self.batch.look(state, self._leadership.may_write) if self.batch else None
        self._say(state, found, looked.problems if looked else ())
        self._count(state, found, (time.monotonic_ns() - began_ns) / NS_PER_S)
        due_ns = began_ns + IDLE_NS if looked is None else min(began_ns + IDLE_NS, looked.due_ns)
        return due_ns if found.due_ns is None else min(due_ns, found.due_ns)

    def _say(self, state: ControllerState, found: Round, of_batch: tuple[str, ...]) -> None:
        waits = () if state.is_synced else ("not everything was listed yet",)
        election = self._leadership.problem()
        reasons = (*waits, *state.problems, *found.problems, *of_batch, *((election,) if election else ()))
        for reason in reasons:
            if reason not in self._said and reason not in waits:
                log.warning("%s", reason)
        self._said = frozenset(reasons)
        self._health.ticked(time.monotonic_ns(), reasons)
        tally = self._reconciler.tally
        written = (tally.created, tally.updated)
        if written != self._written:
            created, updated = (now - then for now, then in zip(written, self._written, strict=True))
            log.info(
                "NodeSLOs: %d created, %d updated; %d of %d Nodes are as they should be",
                created,
                updated,
                found.settled,
                len(state.nodes),
            )
            self._written = written

    def _count(self, state: ControllerState, found: Round, took_s: float) -> None:
        metrics, tally = self._metrics, self._reconciler.tally
        is_leader = not self._is_dry_run and self._leadership.may_write()
        metrics.led += is_leader and not metrics.is_leader
        metrics.is_leader = is_leader
        metrics.nodes = len(state.nodes)
        metrics.nodeslos = {
            "settled": found.settled,
            "pending": found.pending,
            "foreign": found.foreign,
            "orphaned": found.orphaned,
        }
        metrics.requests = {
            "created": tally.created,
            "updated": tally.updated,
            "conflict": tally.conflicts,
            "failed": tally.failures,
        }
        metrics.overwritten = self._reconciler.overwritten
        metrics.rounds.last_s = took_s
        metrics.rounds.count += 1
        if (settings := self._config.settings) is not None:
            reasons = [problem.reason for problem in settings.problems]
            metrics.configmap.problems = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
            metrics.configmap.stale_keys = tuple(sorted(settings.stale))
        if self.batch is not None:
            self.batch.count(metrics.batch)
