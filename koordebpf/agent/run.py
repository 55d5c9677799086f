"""Puts one agent together, runs its loop, and takes it apart again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.act.eviction_hook_settings import NO_HOOKS
from koordebpf.agent.emergency import open_emergency, open_kept_list
from koordebpf.agent.executors import open_actions, open_executor, open_kill, open_killers, open_overdue_kill
from koordebpf.agent.jobs import open_jobs, open_schedule
from koordebpf.agent.ladder import Ladder, open_ladder
from koordebpf.agent.lifecycle.dead_man import open_dead_man
from koordebpf.agent.lifecycle.kill_support import check_kill_support, pod_targets
from koordebpf.agent.lifecycle.open_source import open_source
from koordebpf.agent.lifecycle.standby import Acting, acquire_node_lock, stand_by
from koordebpf.agent.node_writer import OwnStrategies, open_node_writer
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.runners import open_runners
from koordebpf.agent.serving import node_name, open_metrics, series_metrics, serve_reports
from koordebpf.agent.sinks import (
    NO_SHADOW,
    NOT_RECORDED,
    Sinks,
    open_eviction_hooks,
    open_foresight,
    open_recorder,
    open_shadow,
    open_sinks,
)
from koordebpf.agent.taint import open_node_marking
from koordebpf.agent.tick import Agent
from koordebpf.attribution.kubelet_root import kubepods_paths
from koordebpf.collect.cluster_view import check_configuration
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope, open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import CgroupGone, ConfigError, KoordebpfError, SupportError
from koordebpf.kernel.backends.select import passed_over_sentence
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.host.protection import lock_memory, open_all_files, set_oom_score_adj, share_one_arena
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE, PsiTrigger
from koordebpf.policy.foresight import NO_WARNING
from koordebpf.report.events import EventPoster
from koordebpf.report.http.listener import parse_listen
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.recent import Recent
from koordebpf.runner.context import Measuring, NodeContext, open_measuring
from koordebpf.runner.runner import Runner
from koordebpf.store import audit, frames
from koordebpf.store.audit import open_audit
from koordebpf.store.budget import KeptBudget
from koordebpf.store.cgroup_root import KeptRoot
from koordebpf.store.frames import open_frames
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.output_file import descriptor_name, named_descriptor
from koordebpf.store.pod_list import KeptList, KeptSource
from koordebpf.store.rotated_file import check_file
from koordebpf.store.sink import AgentStopped, Sink, TickFailed
from koordebpf.units import NS_PER_MS

if TYPE_CHECKING:
    from koordebpf.kube.clients.evictions import KubeActions

log = logging.getLogger("koordebpf")
_MAX_FAILED_TICKS = 10  # in a row: fail loud, the kubelet starts a fresh one
_FAILED_PAUSE_S = 0.1
# Why 10 ms: a tick for each record took 10 % of a core at 1,300 records a second. How often a node that is close to its
# threshold is looked at does not depend on it.
_RING_REST_NS = 10 * NS_PER_MS


def run_agent(config: AgentConfig, seconds: float | None = None) -> None:
    """Run until SIGTERM or SIGINT, or for so long once it watches; everything is detached afterwards.

    Raises:  ConfigError, SupportError: something the start needs is missing or wrong.
    """
    check_arguments(config)
    share_one_arena()
    scope = open_scope(find_memory_hierarchy(), config.node_cgroup, config.cgroup_root)
    check_kill_support(config, scope)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        loop.stop_on_signals()
        acting = acquire_node_lock(config, scope, stack)
        source = stack.enter_context(contextlib.closing(open_source(config)))
        kept_list = open_kept_list(config, acting and acting.folder, stack)
        if kept_list is not None:
            source = KeptSource(source, kept_list)
        source.start(loop.wake)
        if config.source == "file":
            check_configuration(source.state())
        measuring = open_measuring(config, scope, source, stack)
        _tell_signals(measuring.watch)
        _wake_on_signals(scope, measuring.watch, loop, stack)
        if config.enforce and acting is None:

            def watch_until(is_over: Callable[[], bool]) -> None:
                beside = replace(config, enforce=False, recorder=NOT_RECORDED, shadow=NO_SHADOW)
                beside = replace(beside, eviction_hooks=NO_HOOKS, eviction_warning=NO_WARNING)
                _run(beside, scope, loop, measuring, None, None, is_over)

            acting = stand_by(config, scope, loop, watch_until, stack)
            if acting is None:
                return
            kept_list = open_kept_list(config, acting.folder, stack, knows_pods=True)
        _run(config, scope, loop, measuring, acting, kept_list, _over_after(seconds))
    log.info("stopped: everything is detached")


def _over_after(seconds: float | None) -> Callable[[], bool]:
    if seconds is None:
        return lambda: False
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= until_s


def _run(
    config: AgentConfig,
    scope: NodeScope,
    loop: Loop,
    measuring: Measuring,
    acting: Acting | None,
    kept_list: KeptList | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    with contextlib.ExitStack() as stack:
        actions = open_actions(config, stack)
        kubelet, root_file = measuring.watch.index.kubelet, acting.folder / "cgroup-root" if acting else None
        kept_root = KeptRoot(kubelet, root_file, _own_pod_uid())
        agent, sinks, executor, node = _open_agent(config, scope, loop, measuring, acting, actions, kept_list, stack)
        jobs = open_jobs(dataclasses.replace(node, want_round=agent.want_round))
        schedule = open_schedule(measuring.watch, loop, measuring.series, stack, jobs)
        _prepare_for_shortage(config)
        mode = "dry run: nothing is evicted or written" if executor.is_dry_run else f"enforcing by {executor.name}"
        log.info("watching %s, pods from %s, %s", _scope_text(scope), config.source, mode)

        dead_man = agent.dead_man
        if dead_man:  # closed first: what ends takes longer than a heartbeat may
            loop.set_timer(dead_man.beat)
            stack.callback(dead_man.close)
            stack.callback(loop.stop_timer, dead_man.beat)

        def tick() -> int:
            if dead_man:
                dead_man.tick_begins()
            due_ns = agent.tick()
            kept_root.refresh()
            if dead_man:
                dead_man.tick_ended(time.monotonic_ns())
            return min(due_ns, schedule.run(time.monotonic_ns()) or due_ns)

        _loop(config, loop, tick, sinks, is_over)


# Everything that decides and acts; what is opened last is closed first.
def _open_agent(
    config: AgentConfig,
    scope: NodeScope,
    loop: Loop,
    measuring: Measuring,
    acting: Acting | None,
    actions: KubeActions | None,
    kept_list: KeptList | None,
    stack: contextlib.ExitStack,
) -> tuple[Agent, Sinks, Actuator, NodeContext]:
    folder, watch = acting.folder if acting else None, measuring.watch
    outcomes = OutcomeQueue(loop.wake)
    note, targets = acting.in_flight.kill if acting else None, pod_targets(scope, watch, lifts=config.lift_limits)
    by_cgroup = functools.partial(CgroupExecutor, targets, outcomes, enforce=config.enforce, note=note)
    executors = stack.enter_context(contextlib.ExitStack())
    executor = executors.enter_context(closing(open_executor(config, by_cgroup, outcomes, actions, watch.index)))
    emergency = open_emergency(config, by_cgroup, kept_list, executors)
    sinks, metrics, recent = _open_sinks(config, measuring, acting, actions, stack, dry_run=executor.is_dry_run)
    writer = open_node_writer(config.writer, folder, sinks.publish_change, loop, stack, config.feature_gates)
    cpu = stack.enter_context(closing(CpuSampler(watch, measuring.series, config.wake.burst_window_ns)))
    kill = open_kill(config, executor, by_cgroup, executors)
    ladder = open_ladder(
        config, scope, watch.index, writer, stack, kill=kill, tell=sinks.publish_change, wake=loop.wake
    )
    node = NodeContext(
        config=config,
        measuring=measuring,
        writer=writer,
        loop=loop,
        folder=folder,
        report=sinks.publish_change,
        publish=sinks.publish,
        metrics=metrics,
        stack=stack,
        cpu=cpu,
    )
    own = stack.enter_context(closing(OwnStrategies(writer, folder)))
    parts = AgentParts(
        measuring=measuring,
        writer=writer,
        executor=executor,
        killers=open_killers(config, executor, by_cgroup, outcomes, actions, watch.index, executors),
        outcomes=outcomes,
        sinks=sinks,
        own_pod_uid=_own_pod_uid(),
        kept=_open_budget(acting, stack),
        emergency=emergency,
        cpu=cpu,
        ladder=ladder,
        runners=_open_runners(node, own, recent, sinks, ladder),
        marking=open_node_marking(config, stack),
        overdue_kill=open_overdue_kill(config, executor),
        dead_man=open_dead_man(config, scope, metrics, acts=config.enforce and acting is not None),
    )
    agent = Agent(config, parts)
    stack.callback(_finish, executors, agent)
    return agent, sinks, executor, node


# Those that write their strategy's files come first, as the strategies do.
def _open_runners(
    node: NodeContext, own: OwnStrategies, recent: Recent, sinks: Sinks, ladder: Ladder | None
) -> tuple[Runner, ...]:
    runners, writer = open_runners(node), node.writer
    own.leave({each.writes for each in runners if each.writes is not None})
    node.metrics.node.file_writes += [lambda: writer.counts, *([lambda: ladder.reclaims] if ladder else [])]
    node.metrics.node.strategies += [each.families for each in runners]
    node.measuring.beside.parts = [each.checks for each in runners]
    recent.explain += [each.explain for each in runners]
    for sink in filter(None, (each.sink for each in runners)):
        sinks.add(sink)
    writing = [each for each in runners if each.writes is not None]
    return (*writing, own, *(each for each in runners if each.writes is None))


def _own_pod_uid() -> str | None:
    return os.environ.get("KOORDEBPF_POD_UID")


# The ring and the node's pressure files wake the loop.
def _wake_on_signals(scope: NodeScope, watch: NodeWatch, loop: Loop, stack: contextlib.ExitStack) -> None:
    if (fd := watch.signals.fileno()) is not None:
        loop.watch(fd, _nothing, rest_ns=_RING_REST_NS)
        stack.callback(loop.unwatch, fd)
    _watch_pressure(scope, loop, stack)


def _open_budget(acting: Acting | None, stack: contextlib.ExitStack) -> KeptBudget:
    kept = KeptBudget(
        acting.folder / "evictions.json" if acting else None,
        acting.in_flight.left if acting else (),
        time.monotonic_ns(),
    )
    stack.callback(lambda: kept.close(time.monotonic_ns()))
    return kept


def _open_sinks(
    config: AgentConfig,
    measuring: Measuring,
    acting: Acting | None,
    actions: KubeActions | None,
    stack: contextlib.ExitStack,
    *,
    dry_run: bool,
) -> tuple[Sinks, AgentMetrics, Recent]:
    plans, metrics = OpenPlans(node_name(config), dry_run=dry_run), open_metrics(config, measuring.prediction)
    health, recent = Health(), Recent(plans)
    metrics.node.series = series_metrics(measuring)
    events = EventPoster(actions) if actions else None
    sinks = open_sinks(
        plans,
        metrics,
        health,
        recent,
        audit=open_audit(config.audit),
        in_flight=acting.in_flight if acting else None,
        events=events,
        hooks=open_eviction_hooks(config, plans, measuring.beside),
        foresight=open_foresight(config, plans, events),
        frames=open_frames(config.frames),
        recorder=open_recorder(config, measuring.watch.scope, plans.node),
        shadow=open_shadow(config, measuring.watch.scope, plans.node),
    )
    stack.callback(lambda: sinks.publish(AgentStopped(time.monotonic_ns())))
    serve_reports(config, measuring, metrics, health, recent, stack, acts=acting is not None)
    return sinks, metrics, recent


# What the agent needs while memory and CPUs are short.
def _prepare_for_shortage(config: AgentConfig) -> None:
    # A hog competes for the processor too: with the default nice level and both of two CPUs busy the decision
    # left 5 ms after the crossing (p99 12 ms), with the highest 3 ms.
    open_all_files()
    for problem in (set_oom_score_adj(), raise_thread_priority()) if config.lock_memory else ():
        if problem:
            log.warning("%s", problem)


# While audit and log are still open.
def _finish(executors: contextlib.ExitStack, agent: Agent) -> None:
    executors.close()
    agent.drain_outcomes()


def _loop(
    config: AgentConfig,
    loop: Loop,
    tick: Callable[[], int],
    sinks: Sink,
    is_over: Callable[[], bool],
) -> None:
    failed_in_a_row = 0
    is_locked = not config.lock_memory
    while not (loop.stopping or is_over()):
        try:
            due_ns = tick()
            failed_in_a_row = 0
        except ConfigError:
            raise
        except Exception as error:
            if isinstance(error, KoordebpfError):
                log.error("the tick ended: %s", error)
            else:
                # Unexpected: the next tick may well work, and an agent that ended protects no pod.
                log.exception("the tick ended unexpectedly")
            # Whatever woke the loop may wake it again at once: ten failures must not pass within a moment.
            time.sleep(_FAILED_PAUSE_S)
            due_ns = time.monotonic_ns() + config.sample_cap_ns
            failed_in_a_row += 1
            sinks.publish(TickFailed(str(error)))
            if failed_in_a_row >= _MAX_FAILED_TICKS:
                reason = f"{failed_in_a_row} ticks in a row failed, the last one with: {error}"
                raise SupportError("agent", reason, "The log above has each of them.") from error
        if not is_locked:
            is_locked = True  # after the first tick, which has touched what the next ones need
            if problem := lock_memory():
                log.warning("%s", problem)
        loop.wait(due_ns)


def _watch_pressure(scope: NodeScope, loop: Loop, stack: contextlib.ExitStack) -> None:
    # Wakes the loop when tasks stall; without it the sampling pace alone finds the crossing. On v2 the pods' own levels
    # are watched too: a stall there may be a few percent of a large machine's.
    paths = [NODE_MEMORY_PRESSURE] if scope.kind == "machine" else []
    if scope.hierarchy.version == 2:
        levels = [scope.path] if scope.kind == "cgroup" else []
        levels += [scope.path / path for path in kubepods_paths(scope.cgroup_root or "/")]
        paths += [level / "memory.pressure" for level in levels if (level / "memory.pressure").exists()]
    for path in paths:
        try:
            trigger = stack.enter_context(PsiTrigger(path))
        except (SupportError, CgroupGone) as error:
            log.info("no PSI trigger on %s: %s", path, error)
            continue
        loop.watch(trigger.fileno(), _nothing, priority=True)
        stack.callback(loop.unwatch, trigger.fileno())


def _tell_signals(watch: NodeWatch) -> None:
    # A backend that was passed over explains all that is missing: one sentence then, not one for each signal.
    if sentence := passed_over_sentence(watch.signals):
        log.warning("%s; %s", sentence, watch.quality.sentence)
        return
    log.info("%s", watch.quality.sentence)
    for signal in watch.signals.sources:
        if not signal.works and watch.quality.backend != "files":
            log.warning("missing signal: %s: %s; %s", signal.signal, signal.reason, signal.cost)


def _nothing() -> None:
    """Let the tick that follows look."""


def _scope_text(scope: NodeScope) -> str:
    return "this machine" if scope.kind == "machine" else f"the node cgroup {scope.path}"


# What a person gave, checked before the kernel is touched: addresses, files and folders.


def check_arguments(config: AgentConfig) -> None:
    """Return where the agent can be started with these addresses, files and folders.

    Whether an address is in use shows when it is bound.

    Raises:  ConfigError: an address is not host:port, a file cannot be written, or there is nowhere to make the run
             directory in.
    """
    written = [None if each is None else named_descriptor(each) for each in (config.audit, config.frames)]
    if written[0] is not None and written[0] == written[1]:
        rule = f"must not be {descriptor_name(written[0])}, which has the lines of --audit"
        raise ConfigError("--frames", str(config.frames), rule)
    for option, listen in (("--listen", config.listen), ("--probe-listen", config.probe_listen)):
        if listen:
            parse_listen(listen, option)
    if os.geteuid() != 0:  # what it may not see or write is not what it lacks: the programs' loader says that
        return
    above = config.run_dir.absolute().parent
    if not above.is_dir():
        raise ConfigError("--run-dir", str(config.run_dir), f"{above} must be a folder that is there")
    if (recording := config.recorder.file) is not None and not recording.absolute().parent.is_dir():
        raise ConfigError("FILE", str(recording), f"{recording.absolute().parent} must be a folder that is there")
    for option, path, kept in (("--audit", config.audit, audit.KEPT), ("--frames", config.frames, frames.KEPT)):
        if path is not None:
            check_file(option, path, kept)
