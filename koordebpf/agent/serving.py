"""What an agent answers to others: metrics, the kubelet's probes, and to root why it decided what it did."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import time
from collections.abc import Sequence

from koordebpf.collect.scope import folder_of
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.report.http.local_socket import LocalSocket
from koordebpf.report.http.routes import DecisionServer, Health, ReportServer
from koordebpf.report.job_pages import WithJobs
from koordebpf.report.known import KnownPage
from koordebpf.report.log_formats import log_sink
from koordebpf.report.prom.koordlet import KoordletMetrics
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.page import OwnUsage
from koordebpf.report.prom.series import SeriesMetrics
from koordebpf.report.recent import Recent
from koordebpf.runner.context import Measuring
from koordebpf.state.prediction import LatestPrediction
from koordebpf.state.series.store import SeriesStore
from koordebpf.store.audit_record import AuditRecord

log = logging.getLogger("koordebpf")


def node_name(config: AgentConfig) -> str:
    """Return the Node's name, without one the machine's."""
    return config.node_name or socket.gethostname()


def open_metrics(config: AgentConfig, prediction: LatestPrediction) -> AgentMetrics:
    """Return what `/metrics` shows; evictions of each feature that is on from 0 on."""
    koordlet = None
    if config.koordinator_metrics:
        koordlet = KoordletMetrics(node_name(config), time.time(), prediction)
    metrics = AgentMetrics(koordlet, OwnUsage(), config.pod_series)
    gates = (gate for gate, is_on in config.feature_gates.items() if is_on)
    metrics.decision.expect(gates, config.executor, is_dry_run=not config.enforce)
    metrics.sinks.log_sink = log_sink()
    return metrics


def serve_reports(
    config: AgentConfig,
    measuring: Measuring,
    metrics: AgentMetrics,
    health: Health,
    recent: Recent,
    stack: contextlib.ExitStack,
    *,
    acts: bool,
) -> None:
    """Serve until the stack is closed. `acts`: this agent holds the node's lock.

    Raises:  ConfigError: an address is not `host:port`, or in use.
    """
    # A thread that was put off the processor with the interpreter in its hands keeps the loop waiting: with busy
    # neighbours and a flood of connections the loop woke 33 ms late (p99), with threads of its own priority 10 ms.
    begin = raise_thread_priority if config.lock_memory else None
    beside = health.beside = measuring.beside
    server = ReportServer(
        config.listen, WithJobs(metrics, beside), health, probe_listen=config.probe_listen, begin=begin
    )
    stack.callback(server.close)
    folder = folder_of(config.run_dir, measuring.watch.scope)
    degraded = Degraded(folder, "there is no socket for koordebpf explain and metrics")
    stack.callback(degraded.end)
    beside.pages["/pods"] = lambda _: list(recent.pods())
    beside.pages["/known"] = KnownPage(recent.last_round).answer
    beside.pages["/top"] = functools.partial(_top_page, recent)
    beside.pages["/series"] = functools.partial(_series_page, measuring.series)

    def decisions() -> Sequence[AuditRecord]:
        hooks = metrics.sinks.hooks
        return recent.decisions() if hooks is None else hooks.with_calls(recent.decisions())

    try:
        local = LocalSocket(folder, acts=acts)
        stack.callback(DecisionServer(local, decisions, recent.writes, begin, recent.requests, beside.pages).close)
    except OSError as error:
        degraded.report(error)


def series_metrics(measuring: Measuring) -> SeriesMetrics:
    """Return the metrics of what is measured over time, with the names of the pods as they are known."""
    known = measuring.known
    return SeriesMetrics(
        measuring.series,
        lambda: [facts.pod for facts in known.facts],
        lambda: (known.spec.hostApplications if known.spec else None) or (),
    )


# Loaded when it is asked for: most agents never are.
def _series_page(series: SeriesStore, query: str) -> object:
    from koordebpf.report.series import series_answer

    return series_answer(series, query)


def _top_page(recent: Recent, query: str) -> object:
    from koordebpf.report.top import top_of_round

    del query
    return top_of_round(recent.last_round())
