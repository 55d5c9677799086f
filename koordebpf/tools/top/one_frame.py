"""One moment of a node as a frame that holds what every strategy decides from: `koordebpf top --frame`.

It is measured by the parts of an agent's round, each of which is due. No gate is asked, and nothing is decided or done.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.runners import openers
from koordebpf.agent.serving import open_metrics
from koordebpf.collect.cluster_view import frame_of
from koordebpf.collect.cpu.collector import CpuCollector
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.decide_tick import TickSettings
from koordebpf.decision.strategies import OWN_STRATEGIES, decide_strategies
from koordebpf.errors import KoordebpfError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.loop import Loop
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.runner.context import Measuring, NodeContext
from koordebpf.runner.runner import Runner
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import Measured
from koordebpf.state.view import Frame
from koordebpf.tools.top.looks import open_cpu, sample_cpu
from koordebpf.units import NS_PER_S

_LEARNED_NS = 10 * NS_PER_S  # for a first list of pods. Why: it takes a second or two of a busy API server
_Measure = Callable[[Measured], Measured]


class OneFrame(msgspec.Struct, frozen=True):
    """The frame, and sentences on what is not in it."""

    frame: Frame
    problems: tuple[str, ...] = ()


def one_frame(watch: NodeWatch, interval_s: float, config: AgentConfig, beside: Path) -> OneFrame | None:
    """Return a node as it is after two looks, `interval_s` apart; None: SIGTERM or SIGINT came first.

    What strategies remember after the first look is in the frame: who stalls, and how fast something grows, they know
    by the second alone.

    Args:
        watch: of the node.
        interval_s: between the looks.
        config: of an agent; its gates and its executor are those of the frame.
        beside: the folder of the agent that may act on the node.
    """
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        loop.stop_on_signals()
        if watch.source:
            watch.source.start(loop.wake)
        node = _Node(watch, config, loop, beside, stack)
        _wait(loop, time.monotonic_ns() + _LEARNED_NS, lambda: watch.source is None or node.knows_pods())
        first = node.sample()
        _wait(loop, time.monotonic_ns() + int(interval_s * NS_PER_S))
        if loop.stopping:
            return None
        frame = node.frame(node.sample())
        return OneFrame(replace(frame, states=node.states(first)), tuple(node.problems))


def _wait(loop: Loop, until_ns: int, is_over: Callable[[], bool] = lambda: False) -> None:
    while not loop.stopping and time.monotonic_ns() < until_ns and not is_over():
        loop.wait(until_ns)


class _Node:
    # What is measured with. `problems` are of what cannot be.
    def __init__(
        self, watch: NodeWatch, config: AgentConfig, loop: Loop, beside: Path, stack: contextlib.ExitStack
    ) -> None:
        self.problems: dict[str, None] = {}
        self._config = config
        self._watch = watch
        collector = MemoryCollector(watch.scope, watch.signals, watch.index)
        stack.callback(collector.close)
        self._measuring = Measuring.of(config, watch, collector)
        self._cpu: CpuCollector | None = self._tried(functools.partial(open_cpu, watch))
        if self._cpu:
            stack.callback(self._cpu.close)
        self._cluster: ClusterState | None = None
        self._parts = self._opened(loop, beside, stack)

    def _opened(self, loop: Loop, beside: Path, stack: contextlib.ExitStack) -> list[_Measure]:
        gates = {**self._config.feature_gates, **{each.gate: True for each in OWN_STRATEGIES}}
        config = replace(self._config, feature_gates=gates, enforce=False)
        node = NodeContext(
            config=config,
            measuring=self._measuring,
            writer=CgroupWriter(Places(find_controllers()), None, config.writer),
            loop=loop,
            folder=None,
            report=lambda _: None,
            publish=lambda _: None,
            metrics=open_metrics(config, self._measuring.prediction),
            stack=stack,
            other_folder=beside,
        )
        runners = [
            runner for each in openers(node) if (runner := self._tried(functools.partial(each, node))) is not None
        ]
        return [_measure_of(runner) for runner in runners]

    def _tried(self, of: Callable[[], Any]) -> Any:
        try:
            return of()
        except KoordebpfError as error:
            self.problems[str(error)] = None
            return None

    def knows_pods(self) -> bool:
        self._drain_signals()
        return self._measuring.known.is_whole

    def _drain_signals(self) -> None:
        known = self._measuring.known
        self._watch.drain()
        self._cluster, is_news = self._watch.cluster()
        if is_news and self._cluster:
            known.learn(self._cluster)
            self._watch.know_host_applications(known.host_applications)

    def sample(self) -> Measured:
        self._drain_signals()
        now_ns = time.monotonic_ns()
        measured = self._measuring.history.measure(now_ns, self._measuring.known)
        if self._cpu:
            cpu = functools.partial(sample_cpu, self._cpu, now_ns, self._watch, self._measuring.series)
            measured = replace(measured, cpu=self._tried(cpu))
        for each in self._parts:
            measured = self._tried(functools.partial(each, measured)) or measured
        return measured

    def frame(self, measured: Measured) -> Frame:
        config = self._config
        return frame_of(self._cluster, measured, feature_gates=config.feature_gates, executor=config.executor)

    # With what one that keeps time remembers it would not be due.
    def states(self, measured: Measured) -> dict[str, Any]:
        config = self._config
        gates = {each.gate: True for each in OWN_STRATEGIES}
        view = view_of_frame(replace(self.frame(measured), featureGates=gates), strict=config.compat == "strict")
        settings = TickSettings(eviction=config.eviction, strategies=config.strategies)
        made = decide_strategies(view, {}, settings, has_cpu=view.cpu is not None)
        return {
            each.name: decision.state
            for each in OWN_STRATEGIES
            if not each.keeps_time and (decision := made.get(each.name)) is not None and decision.state != each.state()
        }


def _measure_of(runner: Runner) -> _Measure:
    return lambda measured: runner.measure(measured, is_sample=False)
