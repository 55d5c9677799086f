"""Puts one controller together, runs its loop, and takes it apart again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from koordebpf.controller.election import Election
from koordebpf.controller.reconcile import Reconciler, Round
from koordebpf.controller.settings import Settings, settings_of
from koordebpf.errors import KubeConflict, KubeError, SupportError
from koordebpf.kernel.io.loop import Loop
from koordebpf.kube.cache.objects import ConfigMap
from koordebpf.kube.clients.lease import LeaseClient
from koordebpf.kube.clients.nodeslos import ControllerSource, ControllerState, NodeSLOWriter
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName
from koordebpf.kube.http.transport import open_cluster
from koordebpf.report.http.listener import parse_listen
from koordebpf.report.http.routes import Health, ReportServer
from koordebpf.report.log_formats import log_sink
from koordebpf.report.prom.controller import ControllerMetrics
from koordebpf.slo.manager.webhook import Problem
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.controller.batch.part import BatchResources
    from koordebpf.controller.batch.start import BatchParts

log = logging.getLogger("koordebpf")
_EVENT_RETRY_NS: Final = 30 * NS_PER_S
# Koordinator's reason for what cannot be parsed; its webhook, which would refuse the rest, writes no Event.
_UNPARSED, _INVALID = "SLOCfgUnmarshalFailed", "SLOCfgInvalid"
IDLE_NS: Final = 10 * NS_PER_S  # a sign of life for /healthz where nothing happens
_NO_CRD: Final = (
    "the cluster does not serve NodeSLO: install its CRD (kubectl apply --server-side -k deploy/bootstrap, "
    "or what koordebpf slo crd prints)"
)
LEASE_NAME: Final = "koordebpf-controller"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE: Final = "koordebpf-system"  # as in deploy/base/namespace.yaml
_MAX_FAILED_TICKS: Final = 10  # in a row: fail loud, the kubelet starts a fresh one
_FAILED_NS: Final = NS_PER_S
# A round ends after 5 s and a request that it began after 5 s more; then ten for a loop that waits.
_MAX_SILENCE_NS: Final = 30 * NS_PER_S


class EffectiveSettings:
    """The last settings, and the Events on their ConfigMap that are still to be recorded. `writer` None: dry run."""

    def __init__(self, writer: NodeSLOWriter | None, named: ConfigMapName) -> None:
        self._writer = writer
        self._named = named
        self.settings: Settings | None = None  # None: nothing was listed yet
        self._config_map: ConfigMap | None = None
        self._events: list[tuple[ConfigMap, str, str]] = []  # still to be recorded: on what, reason, message
        self._events_due_ns = 0

    def poll(self, state: ControllerState) -> Settings:
        """Return the effective settings, which a ConfigMap that changed may have changed."""
        config_map = state.config_map
        if self.settings is None or config_map is not self._config_map:
            data = (config_map.data if config_map else None) or {}
            nodes = {node.name: node.labels or {} for node in state.nodes}
            settings = settings_of(data, self.settings, nodes)
            if settings != self.settings:
                self._log_problems(config_map, settings)
                self.settings = settings
            self._config_map = config_map
        return self.settings

    # Once until something else is wrong: in the log, and as Events that wait until this one leads.
    def _log_problems(self, config_map: ConfigMap | None, settings: Settings) -> None:
        if config_map is None:
            self._events = []
            log.info("no ConfigMap %s: every NodeSLO gets the defaults", self._named)
            return
        last = self.settings or Settings()
        known = last.problems
        if (settings.problems, settings.messages) == (known, last.messages):
            return
        for problem in settings.problems:
            if problem not in known:
                log.warning("%s: %s: %s", self._named.name, problem.reason, problem)
        for key in sorted(settings.stale if settings.problems != known else ()):
            log.warning("%s: %s", self._named.name, _stale_sentence(key, settings))
        for key, of_key in settings.messages.items():
            for message in of_key if settings.problems != known or of_key != last.messages.get(key) else ():
                log.warning("%s: %s", self._named.name, message)
        self._events = []
        for reason in (_UNPARSED, _INVALID):
            said = [each for each in settings.problems if _event_reason(each) == reason]
            if said:
                stale = [_stale_sentence(key, settings) for key in sorted(settings.stale) if _concerns(key, said)]
                messages = [
                    each for key, of_key in settings.messages.items() if _concerns(key, said) for each in of_key
                ]
                self._events.append((config_map, reason, "; ".join([*map(str, said), *stale, *messages])))

    def record_events(self, now_ns: int) -> None:
        """Record the Events that wait, where the API server takes them; others stay for the next call."""
        if self._writer is None or now_ns < self._events_due_ns:
            return
        while self._events:
            config_map, reason, message = self._events[0]
            try:
                self._writer.warn(config_map, reason, message, datetime.now(UTC))
            except KubeConflict:
                pass  # another leader has said it
            except KubeError as error:
                log.warning("event %s on %s was not recorded: %s", reason, self._named.name, error)
                if error.retry:
                    self._events_due_ns = now_ns + _EVENT_RETRY_NS
                    return
            del self._events[0]


def _event_reason(problem: Problem) -> str:
    return _UNPARSED if problem.reason == "ParseConfigFail" else _INVALID


def _concerns(key: str, problems: list[Problem]) -> bool:
    return any(problem.path == key or problem.path.startswith((f"{key}.", f"{key}[")) for problem in problems)


def _stale_sentence(key: str, settings: Settings) -> str:
    if key in settings.held:
        return f"{key} is unusable: NodeSLOs keep what they have of it, and new ones get the default, which is off"
    return f"{key} is unusable: its last good value stays in force"


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
        self._config = EffectiveSettings(writer, source.config_map)
        self._said: frozenset[str] = frozenset()
        self._written = (0, 0)
        self.batch: BatchResources | None = None

    def tick(self) -> int:
        """Look once, write what differs; return when to look again (CLOCK_MONOTONIC) though nothing wakes."""
        began_ns = time.monotonic_ns()
        state = self._source.state()
        found = Round()
        if state.is_synced:
            settings = self._config.poll(state)
            if not state.serves_nodeslos:
                found = Round(pending=len(state.nodes), problems=(_NO_CRD,))
            elif self._leadership.may_write():
                found = self._reconciler.round(state, settings, self._leadership.may_write)
                self._config.record_events(began_ns)
        looked = self.batch.run_due(state, self._leadership.may_write) if self.batch else None
        self._log_round(state, found, looked.problems if looked else ())
        self._count(state, found, (time.monotonic_ns() - began_ns) / NS_PER_S)
        due_ns = began_ns + IDLE_NS if looked is None else min(began_ns + IDLE_NS, looked.due_ns)
        return due_ns if found.due_ns is None else min(due_ns, found.due_ns)

    def _log_round(self, state: ControllerState, found: Round, of_batch: tuple[str, ...]) -> None:
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


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one controller runs with."""

    kubeconfig: Path | None = None
    kube_context: str | None = None
    lease_namespace: str | None = None  # None: the pod's own
    listen: str = "127.0.0.1:9321"
    probe_listen: str | None = None  # None: the host of `listen`, its port + 2
    adopt: bool = False
    dry_run: bool = False
    batch_resources: bool = False
    config_map: ConfigMapName = CONFIG_MAP


def run_controller(config: ControllerConfig) -> None:
    """Run until SIGTERM or SIGINT; the Lease is released afterwards.

    Raises:  ConfigError: no API server to ask, or an address that cannot be bound.
    """
    for option, listen in (("--listen", config.listen), ("--probe-listen", config.probe_listen)):
        if listen:
            parse_listen(listen, option)
    identity = f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        loop.stop_on_signals()
        batch = _batch(config, stack) if config.batch_resources else None
        source = ControllerSource(
            open_cluster(config.kubeconfig, config.kube_context),
            decode_node=batch.decode_node if batch else None,
            config_map=config.config_map,
        )
        stack.callback(source.close)
        metrics, health = ControllerMetrics(), Health(max_silence_ns=_MAX_SILENCE_NS)
        metrics.is_dry_run = config.dry_run
        metrics.log_sink = log_sink()
        writer, election = None, None
        if not config.dry_run:
            transport = open_cluster(config.kubeconfig, config.kube_context)
            stack.callback(transport.close)
            writer = NodeSLOWriter(transport, identity)
            namespace = config.lease_namespace or _own_namespace()
            election = Election(LeaseClient(transport, namespace, LEASE_NAME), identity, loop.wake)
            log.info("%s stands for election: lease %s/%s", identity, namespace, LEASE_NAME)
        else:
            log.info("dry run: nothing is written, and no lease is taken")
        controller = Controller(
            source,
            writer,
            Reconciler(writer, adopts=config.adopt, now_ns=time.monotonic_ns),
            Leadership(
                lambda: not loop.stopping and (election is None or election.is_leader()),
                lambda: election.problem if election else "",
            ),
            metrics,
            health,
        )
        controller.batch = batch.resources if batch else None
        stack.callback(ReportServer(config.listen, metrics, health, probe_listen=config.probe_listen).close)
        if election:
            stack.callback(election.close)
            election.start()
        source.start(loop.wake)
        if batch:
            batch.source.start()
        _loop(loop, controller, health)
    log.info("stopped")


# Imported where it is asked for: without it the controller's memory is what it was.
def _batch(config: ControllerConfig, stack: contextlib.ExitStack) -> BatchParts:
    from koordebpf.controller.batch.start import open_batch

    batch = open_batch(config.kubeconfig, config.kube_context, adopts=config.adopt, is_dry_run=config.dry_run)
    stack.callback(batch.close)
    return batch


def _loop(loop: Loop, controller: Controller, health: Health) -> None:
    failed_in_a_row = 0
    while not loop.stopping:
        try:
            due_ns = controller.tick()
            failed_in_a_row = 0
        except Exception as error:
            failed_in_a_row += 1
            log.exception("the tick ended unexpectedly")
            health.failed(f"the last tick failed: {error}")
            if failed_in_a_row >= _MAX_FAILED_TICKS:
                reason = f"{failed_in_a_row} ticks in a row failed, the last one with: {error}"
                raise SupportError("controller", reason, "The log above has each of them.") from error
            # Whatever woke the loop may wake it again at once: ten failures must not pass within a moment.
            due_ns = time.monotonic_ns() + _FAILED_NS
            time.sleep(_FAILED_NS / NS_PER_S)
        loop.wait(due_ns)


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text("utf-8").strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE
