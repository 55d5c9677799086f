"""Puts one agent together, runs its loop, and takes it apart again."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from koordebpf.act.actuator import Actuator, OutcomeQueue
from koordebpf.act.api import ApiExecutor, ApiLimits
from koordebpf.act.cgroup import CgroupExecutor
from koordebpf.act.guards import GuardLimits
from koordebpf.act.last_resort import LastResort
from koordebpf.agent.collector import Collector
from koordebpf.agent.config import AgentConfig
from koordebpf.agent.known import check_configuration
from koordebpf.agent.reporter import Reporter
from koordebpf.agent.scope import NodeScope, open_scope
from koordebpf.agent.tick import Agent
from koordebpf.agent.watch import NodeWatch
from koordebpf.errors import CgroupGone, ConfigError, KoordebpfError, SupportError
from koordebpf.kernel.cgroupfs import find_memory_hierarchy
from koordebpf.kernel.kill import KillTarget, hurry_this_thread
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

if TYPE_CHECKING:
    from koordebpf.kube.actions import KubeActions

log = logging.getLogger("koordebpf")

_MAX_FAILED_TICKS = 10  # in a row: fail loud, the kubelet starts a fresh one
_FAILED_PAUSE_S = 0.1
# How old the view of pods may get: a healthy watch proves itself by bookmarks and new requests, at most 81 s apart
# (kube/api.py); a kubelet answers each 10 s.
_PODS_MAX_AGE_NS = {"api": 90 * NS_PER_S, "kubelet": 30 * NS_PER_S, "file": 30 * NS_PER_S}
_MIN_TIMEOUT_S = 0.5  # of an eviction, however short --kill-after-s is
_SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def run_agent(config: AgentConfig) -> None:
    """Run until SIGTERM or SIGINT; everything is detached afterwards.

    Raises:  ConfigError, SupportError: something the start needs is missing or wrong.
    """
    scope = open_scope(find_memory_hierarchy(), config.node_cgroup)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        loop.stop_on_signals()
        source, actions = _open_source(config), _open_actions(config, stack)
        watch = stack.enter_context(NodeWatch(scope, source, config.min_stall_ns))
        for signal in watch.signals.sources:
            if not signal.works:
                log.warning("no %s here: %s; %s", signal.signal, signal.reason, signal.cost)
        source.start(loop.wake)
        if config.source == "file":
            check_configuration(source.state())
        if watch.signals.ring:
            loop.watch(watch.signals.ring.fileno(), _nothing)
        _watch_pressure(scope, loop, stack)
        collector = Collector(scope, watch.signals, watch.index)
        stack.callback(collector.close)
        outcomes = OutcomeQueue(loop.wake)
        executor = _open_executor(config, scope, watch, outcomes, actions)
        stack.callback(executor.close)
        metrics, health = AgentMetrics(SelfUsageReader().read), Health()
        reporter = Reporter(
            node=config.node_name or socket.gethostname(),
            dry_run=executor.is_dry_run,
            audit=_open_audit(config.audit),
            events=EventPoster(actions) if actions else None,
            metrics=metrics,
            health=health,
        )
        stack.callback(reporter.close)
        if config.listen:
            stack.callback(ReportServer(config.listen, metrics, health).close)
        limits = GuardLimits(
            evictions_per_minute=config.evictions_per_minute,
            pods_max_age_ns=_PODS_MAX_AGE_NS[config.source]
            if config.pods_max_age_s is None
            else int(config.pods_max_age_s * NS_PER_S),
        )
        agent = Agent(
            config, watch, collector, executor, outcomes, reporter, limits, os.environ.get("KOORDEBPF_POD_UID")
        )
        # A hog competes for the processor too: with the default nice level and both of two CPUs busy the decision
        # left 5 ms after the crossing (p99 12 ms), with the highest 3 ms.
        for problem in (spare_from_oom(), hurry_this_thread()) if config.lock_memory else ():
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
        except Exception as error:
            if isinstance(error, KoordebpfError):
                log.error("the tick ended: %s", error)
            else:
                # Unexpected: the next tick may well work, and an agent that ended protects nobody.
                log.exception("the tick ended unexpectedly")
            # Whatever woke the loop may wake it again at once: ten failures must not pass within a moment.
            time.sleep(_FAILED_PAUSE_S)
            due_ns = time.monotonic_ns() + config.sample_cap_ns
            failed_in_a_row += 1
            reporter.failed_tick(error)
            if failed_in_a_row >= _MAX_FAILED_TICKS:
                reason = f"{failed_in_a_row} ticks in a row failed, the last one with: {error}"
                raise SupportError("agent", reason, "The log above tells of each.") from error
        if not is_locked:
            is_locked = True  # after the first tick, which has touched what the next ones need
            if problem := lock_memory():
                log.warning("%s", problem)
        loop.wait(due_ns)


# The kubernetes package is 38 MB: imported only where something talks to an API server.
def _open_source(config: AgentConfig) -> Source:
    if config.source == "file":
        if not config.files:
            raise ConfigError("--pods", None, "source file needs at least one file with pods and a NodeSLO")
        if config.executor == "api":
            raise ConfigError("--executor", "api", "needs --source api or kubelet: files know no API server")
        return FileSource(config.files)
    if not config.node_name:
        raise ConfigError("--node-name", None, f"source {config.source} needs this node's name")
    if config.source == "api":
        from koordebpf.kube.api import ApiSource
        from koordebpf.kube.transport import open_cluster

        return ApiSource(open_cluster(config.kubeconfig), config.node_name)
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
    return MergedSource(kubelet, FileSource(config.files))


def _open_actions(config: AgentConfig, stack: contextlib.ExitStack) -> KubeActions | None:
    if config.executor != "api":
        return None
    from koordebpf.kube.actions import KubeActions
    from koordebpf.kube.transport import open_cluster

    actions = KubeActions(open_cluster(config.kubeconfig), config.node_name or "")
    stack.callback(actions.close)
    return actions


def _open_executor(
    config: AgentConfig,
    scope: NodeScope,
    watch: NodeWatch,
    outcomes: OutcomeQueue,
    actions: KubeActions | None,
) -> Actuator:
    hierarchy = scope.hierarchy

    def locate(cgroup_id: int) -> KillTarget | None:
        path = watch.index.path(cgroup_id)
        if path is None:
            return None
        freezer = hierarchy.freezer_mount_point
        return KillTarget(hierarchy.mount_point / path, cgroup_id, hierarchy.version, freezer and freezer / path)

    if actions is None:
        return CgroupExecutor(locate, outcomes, enforce=config.enforce)
    limits = ApiLimits()
    if config.kill_after_s is None:
        return LastResort(ApiExecutor(actions, outcomes, limits=limits, enforce=config.enforce), None)
    # An API server that hangs must have failed by the time at which the cgroup is to be killed.
    limits = ApiLimits(timeout_s=max(min(limits.timeout_s, config.kill_after_s), _MIN_TIMEOUT_S), unknown_tries=1)
    return LastResort(
        ApiExecutor(actions, outcomes, limits=limits, enforce=config.enforce),
        CgroupExecutor(locate, outcomes, enforce=config.enforce),
        kill_after_s=config.kill_after_s,
    )


def _open_audit(path: Path | None) -> AuditLog | None:
    if path is None or path == Path("-"):
        return AuditLog(None) if path else None
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
    except OSError as error:
        raise ConfigError("--audit", str(path), f"must be a file that can be written: {error.strerror}") from None
    return AuditLog(path)


def _watch_pressure(scope: NodeScope, loop: Loop, stack: contextlib.ExitStack) -> None:
    # Wakes the loop when tasks stall; without it the sampling pace alone finds the crossing. On v2 the pods' own levels
    # are watched too: a stall there may be a few percent of a large machine's.
    paths = [NODE_MEMORY_PRESSURE] if scope.kind == "machine" else []
    if scope.hierarchy.version == 2:
        levels = [scope.path] if scope.kind == "cgroup" else []
        levels += [scope.path / name for name in ("kubepods", "kubepods.slice")]
        paths += [level / "memory.pressure" for level in levels if (level / "memory.pressure").exists()]
    for path in paths:
        try:
            trigger = stack.enter_context(PsiTrigger(path))
        except (SupportError, CgroupGone) as error:
            log.info("no PSI trigger on %s: %s", path, error)
            continue
        loop.watch(trigger.fileno(), _nothing, priority=True)


def _nothing() -> None:
    """Let the tick that follows look."""


def _scope_text(scope: NodeScope) -> str:
    return "this machine" if scope.kind == "machine" else f"the node cgroup {scope.path}"
