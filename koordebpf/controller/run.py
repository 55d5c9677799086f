"""Puts one controller together, runs its loop, and takes it apart again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from koordebpf.controller.election import Election
from koordebpf.controller.reconcile import Reconciler
from koordebpf.controller.tick import Controller, Leadership
from koordebpf.errors import SupportError
from koordebpf.kernel.io.loop import Loop
from koordebpf.kube.clients.lease import LeaseClient
from koordebpf.kube.clients.nodeslos import ControllerSource, NodeSLOWriter
from koordebpf.kube.http.transport import open_cluster
from koordebpf.report.http.listener import parse_listen
from koordebpf.report.http.routes import Health, ReportServer
from koordebpf.report.log.json_log import log_sink
from koordebpf.report.prom.controller import ControllerMetrics
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.controller.batch.start import BatchParts

log = logging.getLogger("koordebpf")

LEASE_NAME: Final = "koordebpf-controller"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE: Final = "koordebpf-system"  # as in deploy/base/namespace.yaml
_MAX_FAILED_TICKS: Final = 10  # in a row: fail loud, the kubelet starts a fresh one
_FAILED_NS: Final = NS_PER_S
# A round ends after 5 s and a request that it began after 5 s more; then ten for a loop that waits.
_MAX_SILENCE_NS: Final = 30 * NS_PER_S


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
            open_cluster(config.kubeconfig, config.kube_context), decode_node=batch.decode_node if batch else None
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
