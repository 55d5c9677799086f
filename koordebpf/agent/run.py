"""Puts one agent together, runs its loop, and takes it apart again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from pathlib import Path

from koordebpf.act.actuator import Actuator, OutcomeQueue
from koordebpf.act.cgroup import CgroupExecutor
from koordebpf.act.guards import GuardLimits
from koordebpf.agent.collector import Collector
from koordebpf.agent.config import AgentConfig
from koordebpf.agent.reporter import Reporter
from koordebpf.agent.scope import NodeScope, open_scope
from koordebpf.agent.tick import Agent
from koordebpf.agent.watch import NodeWatch
from koordebpf.errors import ConfigError, KoordebpfError, SupportError
from koordebpf.kernel.cgroupfs import find_memory_hierarchy
from koordebpf.kernel.kill import KillTarget
from koordebpf.kernel.loop import Loop
from koordebpf.kernel.protection import lock_memory, spare_from_oom
from koordebpf.kernel.psi import NODE_MEMORY_PRESSURE, PsiTrigger
from koordebpf.kernel.self_usage import SelfUsageReader
from koordebpf.kube.file import FileSource
from koordebpf.kube.merged import MergedSource
from koordebpf.kube.source import Source
from koordebpf.report.audit import AuditLog
from koordebpf.report.events import EventPoster
from koordebpf.report.http import Health, ReportServer
from koordebpf.report.metrics import AgentMetrics
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

_MAX_FAILED_TICKS = 10  # in a row: fail loud, the kubelet starts a fresh one
# How old the view of pods may get: a healthy watch proves itself by bookmarks and new requests, at most 81 s apart
# (kube/api.py); a kubelet answers each 10 s.
_PODS_MAX_AGE_NS = {"api": 90 * NS_PER_S, "kubelet": 30 * NS_PER_S, "file": 30 * NS_PER_S}
_SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def run_agent(config: AgentConfig) -> None:
    """Run until SIGTERM or SIGINT; everything is detached afterwards.

    Raises:  ConfigError, SupportError: something the start needs is missing or wrong.
    """
    scope = open_scope(find_memory_hierarchy(), config.node_cgroup)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        loop.stop_on_signals()
        source, events = _open_kube(config, stack)
        watch = stack.enter_context(NodeWatch(scope, source, config.min_stall_ns))
        source.start(loop.wake)
        if watch.signals.ring:
            loop.watch(watch.signals.ring.fileno(), _nothing)
        _watch_pressure(scope, loop, stack)
        collector = Collector(scope, watch.signals, watch.index)
        stack.callback(collector.close)
        outcomes = OutcomeQueue(loop.wake)
        executor = _open_executor(config, scope, watch, outcomes, stack)
        metrics, health = AgentMetrics(SelfUsageReader().read), Health()
        audit = AuditLog(None if config.audit == Path("-") else config.audit) if config.audit else None
        reporter = Reporter(
            node=config.node_name or socket.gethostname(),
            dry_run=executor.is_dry_run,
            audit=audit,
            events=events,
            metrics=metrics,
            health=health,
        )
        stack.callback(reporter.close)
        if config.listen:
            stack.callback(ReportServer(config.listen, metrics, health).close)
        limits = GuardLimits(
            evictions_per_minute=config.evictions_per_minute,
            pods_max_age_ns=_PODS_MAX_AGE_NS[config.source],
        )
        agent = Agent(
            config, watch, collector, executor, outcomes, reporter, limits, os.environ.get("KOORDEBPF_POD_UID")
        )
        for problem in (spare_from_oom(),) if config.lock_memory else ():
            if problem:
                log.warning("%s", problem)
        mode = "dry run: nothing is evicted" if executor.is_dry_run else f"enforcing by {executor.name}"
        log.info("watching %s, pods from %s, %s", _scope_text(scope), source.name, mode)
        _loop(config, loop, agent, reporter)
        log.info("stopped: everything is detached")


def _loop(config: AgentConfig, loop: Loop, agent: Agent, reporter: Reporter) -> None:
    failed_in_a_row = 0
    is_locked = not config.lock_memory
    while not loop.stopping:
        try:
            due_ns = agent.tick()
            failed_in_a_row = 0
        except ConfigError:
            raise
        except KoordebpfError as error:
            log.error("the tick ended: %s", error)
            due_ns = time.monotonic_ns() + config.sample_cap_ns
            failed_in_a_row += 1
            reporter.failed_tick()
        except Exception:
            # Unexpected: the next tick may well work, and an agent that ended protects nobody.
            log.exception("the tick ended unexpectedly")
            due_ns = time.monotonic_ns() + config.sample_cap_ns
            failed_in_a_row += 1
            reporter.failed_tick()
        if failed_in_a_row >= _MAX_FAILED_TICKS:
            raise SupportError("agent", f"{failed_in_a_row} ticks in a row failed", "The log above says why.")
        if not is_locked:
            is_locked = True  # after the first tick, which has touched what the next ones need
            if problem := lock_memory():
                log.warning("%s", problem)
        loop.wait(due_ns)


def _open_kube(config: AgentConfig, stack: contextlib.ExitStack) -> tuple[Source, EventPoster | None]:
    # The kubernetes package is 38 MB: imported only where something talks to an API server.
    if config.source == "file":
        if not config.files:
            raise ConfigError("--pods", None, "source file needs at least one file with pods and a NodeSLO")
        if config.executor == "api":
            raise ConfigError("--executor", "api", "needs --source api or kubelet: files know no API server")
        return FileSource(config.files), None
    if not config.node_name:
        raise ConfigError("--node-name", None, f"source {config.source} needs this node's name")
    events = None
    if config.executor == "api":
        from koordebpf.kube.actions import KubeActions
        from koordebpf.kube.transport import open_cluster

        actions = KubeActions(open_cluster(config.kubeconfig), config.node_name)
        stack.callback(actions.close)
        events = EventPoster(actions)
    if config.source == "api":
        from koordebpf.kube.api import ApiSource
        from koordebpf.kube.transport import open_cluster

        return ApiSource(open_cluster(config.kubeconfig), config.node_name), events
    from koordebpf.kube.kubelet import KubeletSource

    if not config.kubelet_url:
        raise ConfigError("--kubelet-url", None, "source kubelet needs its address, as https://127.0.0.1:10250")
    if not config.files:
        raise ConfigError("--pods", None, "source kubelet needs a file with the NodeSLO: the kubelet knows pods only")
    kubelet = KubeletSource(
        config.kubelet_url,
        config.kubelet_token_file or _SERVICE_ACCOUNT_TOKEN,
        config.node_name,
        ca_file=config.kubelet_ca_file,
        insecure=config.kubelet_insecure,
    )
    return MergedSource(kubelet, FileSource(config.files)), events


def _open_executor(
    config: AgentConfig, scope: NodeScope, watch: NodeWatch, outcomes: OutcomeQueue, stack: contextlib.ExitStack
) -> Actuator:
    hierarchy = scope.hierarchy

    def locate(cgroup_id: int) -> KillTarget | None:
        path = watch.index.path(cgroup_id)
        if path is None:
            return None
        freezer = hierarchy.freezer_mount_point
        return KillTarget(hierarchy.mount_point / path, cgroup_id, hierarchy.version, freezer and freezer / path)

    executor: Actuator
    if config.executor == "cgroup":
        executor = CgroupExecutor(locate, outcomes, enforce=config.enforce)
    else:
        from koordebpf.act.api import ApiExecutor
        from koordebpf.act.last_resort import LastResort
        from koordebpf.kube.actions import KubeActions
        from koordebpf.kube.transport import open_cluster

        actions = KubeActions(open_cluster(config.kubeconfig), config.node_name or "")
        stack.callback(actions.close)
        last = CgroupExecutor(locate, outcomes, enforce=config.enforce) if config.kill_after_s is not None else None
        executor = LastResort(
            ApiExecutor(actions, outcomes, enforce=config.enforce), last, kill_after_s=config.kill_after_s
        )
    stack.callback(executor.close)
    return executor


def _watch_pressure(scope: NodeScope, loop: Loop, stack: contextlib.ExitStack) -> None:
    # Wakes the loop within the window when tasks stall; without it the sampling pace alone finds the crossing.
    if scope.kind == "cgroup" and scope.hierarchy.version == 1:
        return
    path = NODE_MEMORY_PRESSURE if scope.kind == "machine" else scope.path / "memory.pressure"
    try:
        trigger = stack.enter_context(PsiTrigger(path))
    except SupportError as error:
        log.info("no PSI trigger: %s", error)
        return
    loop.watch(trigger.fileno(), _nothing, priority=True)


def _nothing() -> None:
    """Let the tick that follows look."""


def _scope_text(scope: NodeScope) -> str:
    return "this machine" if scope.kind == "machine" else f"the node cgroup {scope.path}"
