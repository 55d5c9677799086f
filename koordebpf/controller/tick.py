"""One look at the cluster: settings out of the ConfigMap, NodeSLOs out of the settings, and what to say of both."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from koordebpf.controller.reconcile import Reconciler, Round
from koordebpf.controller.settings import Settings, settings_of
from koordebpf.errors import KubeConflict, KubeError
from koordebpf.kube.cache.objects import ConfigMap
from koordebpf.kube.clients.nodeslos import ControllerSource, ControllerState, NodeSLOWriter
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.controller import ControllerMetrics
from koordebpf.slo.manager.webhook import Problem
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

IDLE_NS: Final = 10 * NS_PER_S  # a sign of life for /healthz where nothing happens
_EVENT_RETRY_NS: Final = 30 * NS_PER_S
# Koordinator's reason for what cannot be parsed; its webhook, which would refuse the rest, writes no Event.
_UNPARSED, _INVALID = "SLOCfgUnmarshalFailed", "SLOCfgInvalid"
_NO_CRD: Final = "the cluster does not serve NodeSLO: install its CRD (koordebpf slo crd)"


class Controller:
    """The state between two looks. `writer` None: dry run. `may_write`: nobody else leads now, and it is not to end."""

    def __init__(
        self,
        source: ControllerSource,
        writer: NodeSLOWriter | None,
        reconciler: Reconciler,
        may_write: Callable[[], bool],
        election_problem: Callable[[], str],
        metrics: ControllerMetrics,
        health: Health,
    ) -> None:
        self._source = source
        self._writer = writer
        self._reconciler = reconciler
        self._may_write = may_write
        self._election_problem = election_problem
        self._metrics = metrics
        self._health = health
        self._settings: Settings | None = None
        self._config_map: ConfigMap | None = None
        self._events: list[tuple[ConfigMap, str, str]] = []  # still to be recorded: on what, reason, message
        self._events_due_ns = 0
        self._said: frozenset[str] = frozenset()
        self._written = (0, 0)

    def tick(self) -> int:
        """Look once, write what differs; return when to look again (CLOCK_MONOTONIC) though nothing wakes."""
        began_ns = time.monotonic_ns()
        state = self._source.state()
        found = Round()
        if state.is_synced:
            settings = self._take_settings(state)
            if not state.serves_nodeslos:
                found = Round(pending=len(state.nodes), problems=(_NO_CRD,))
            elif self._may_write():
                found = self._reconciler.round(state, settings, self._may_write)
                self._record_events(began_ns)
        self._say(state, found)
        self._count(state, found, (time.monotonic_ns() - began_ns) / NS_PER_S)
        due_ns = began_ns + IDLE_NS
        return due_ns if found.due_ns is None else min(due_ns, found.due_ns)

    def _take_settings(self, state: ControllerState) -> Settings:
        config_map = state.config_map
        if self._settings is None or config_map is not self._config_map:
            data = (config_map.data if config_map else None) or {}
            nodes = {node.name: node.labels or {} for node in state.nodes}
            settings = settings_of(data, self._settings, nodes)
            if settings != self._settings:
                self._tell(config_map, settings)
                self._settings = settings
            self._config_map = config_map
        return self._settings

    # Once until something else is wrong: in the log, and as Events that wait until this one leads.
    def _tell(self, config_map: ConfigMap | None, settings: Settings) -> None:
        if config_map is None:
            self._events = []
            log.info("no ConfigMap slo-controller-config: every NodeSLO gets the defaults")
            return
        known = self._settings.problems if self._settings else ()
        if settings.problems == known:
            return
        for problem in settings.problems:
            if problem not in known:
                log.warning("slo-controller-config: %s: %s", problem.reason, problem)
        for key in sorted(settings.stale):
            log.warning("slo-controller-config: %s", _stale_sentence(key, settings))
        self._events = []
        for reason in (_UNPARSED, _INVALID):
            said = [each for each in settings.problems if _event_reason(each) == reason]
            if said:
                stale = [_stale_sentence(key, settings) for key in sorted(settings.stale) if _concerns(key, said)]
                self._events.append((config_map, reason, "; ".join([*map(str, said), *stale])))

    def _record_events(self, now_ns: int) -> None:
        if self._writer is None or now_ns < self._events_due_ns:
            return
        while self._events:
            config_map, reason, message = self._events[0]
            try:
                self._writer.warn(config_map, reason, message, datetime.now(UTC))
            except KubeConflict:
                pass  # another leader has said it
            except KubeError as error:
                log.warning("event %s on slo-controller-config was not recorded: %s", reason, error)
                if error.retry:
                    self._events_due_ns = now_ns + _EVENT_RETRY_NS
                    return
            del self._events[0]

    def _say(self, state: ControllerState, found: Round) -> None:
        waits = () if state.is_synced else ("not everything was listed yet",)
        election = self._election_problem()
        reasons = (*waits, *state.problems, *found.problems, *((election,) if election else ()))
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
        is_leader = self._writer is not None and self._may_write()
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
        metrics.last_round_s = took_s
        metrics.rounds += 1
        if self._settings is not None:
            reasons = [problem.reason for problem in self._settings.problems]
            metrics.configmap_problems = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
            metrics.stale_keys = tuple(sorted(self._settings.stale))


def _event_reason(problem: Problem) -> str:
    return _UNPARSED if problem.reason == "ParseConfigFail" else _INVALID


def _concerns(key: str, problems: list[Problem]) -> bool:
    return any(problem.path == key or problem.path.startswith((f"{key}.", f"{key}[")) for problem in problems)


def _stale_sentence(key: str, settings: Settings) -> str:
    if key in settings.held:
        return f"{key} is unusable: NodeSLOs keep what they have of it, and new ones get the default"
    return f"{key} is unusable: its last good value stays in force"
