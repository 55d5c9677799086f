"""A node in virtual time: its pods, its servers, and the agent that runs on it, dies there and is started again."""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

from koordebpf.agent import run
from koordebpf.agent.lifecycle.standby import acquire_node_lock
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig, defaults_for
from koordebpf.decision.decide_tick import decided_again, encode_decision
from koordebpf.kernel.cgroup import hierarchy
from koordebpf.kernel.io.loop import Loop
from koordebpf.runner.context import open_measuring
from koordebpf.store.sink import Event, PlanDecided, RoundEnded, TickFailed
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.simulated.cluster import (
    FakeRuntime,
    FakeServer,
    ListedSource,
    SteppedApiExecutor,
    SteppedCriExecutor,
)
from tests.support.simulated.faults import Faults, Killed
from tests.support.simulated.tree import Pod, Tree
from tests.support.simulated.virtual_time import VirtualTime

_DAY_S = 86_400


class _SteppedLoop(Loop):
    # Waits in virtual time; `until_ns` is the end of the step.
    def __init__(self, node: SimulatedNode) -> None:
        super().__init__()
        self._node = node
        self.until_ns = 0

    def wait(self, until_ns: int) -> None:
        clock = self._node.clock
        clock.ns = max(clock.ns + NS_PER_MS, min(until_ns, self.until_ns, self._node.worker_due_ns() or until_ns))
        self._node.work()


class SimulatedNode:
    """Everything around one agent. Use it as a context manager: the process's clocks and files are its own meanwhile.

    `given` are fields of `AgentConfig` that differ.
    """

    def __init__(self, folder: Path, *, seed: int = 0, threshold_percent: int = 70, **given: Any) -> None:
        self.clock = VirtualTime()
        self.tree = Tree(folder)
        self.faults = Faults(self.tree.mount)
        self.server = FakeServer(self.faults, self.clock.now_ns)
        self.runtime = FakeRuntime(self.faults, self.clock.now_ns)
        self.pods: dict[str, Pod] = {}
        self.events: list[Event] = []
        self.rounds = self.ticks = 0
        self.decided_otherwise: list[RoundEnded] = []  # when they were decided again, at another time
        self.is_running = False
        self._terminating: dict[str, int] = {}  # uid → until when
        self._slo = _nodeslo(threshold_percent)
        self._random = random.Random(seed)
        self._stack = contextlib.ExitStack()
        self._agent = contextlib.ExitStack()
        base = replace(defaults_for("api", "none"), enforce=True, node_name="node", listen="", probe_listen="")
        gates = {**base.feature_gates, **given.pop("gates", {})}
        # What is written without the API server would need a thread: neither is here.
        self.config: AgentConfig = replace(
            base, node_cgroup=self.tree.node, run_dir=folder / "run", feature_gates=gates, lock_memory=False, **given
        )
        self.config = replace(self.config, recorder=run.NOT_RECORDED, backend="files")

    # The world.
    def add(self, name: str, mib: int, **given: Any) -> Pod:
        """Let a pod come; `given` as `Pod` reads it."""
        pod = self.pods[name] = Pod(name, mib, given)
        self.tree.add(pod)
        self.runtime.running[pod.uid] = (f"{pod.uid}-main",)
        self._list()
        return pod

    def remove(self, name: str) -> None:
        """Let a pod end."""
        pod = self.pods.pop(name)
        self.tree.remove(pod)
        self.runtime.running.pop(pod.uid, None)
        self._list()

    def hold(self, **mib: int) -> None:
        """Let pods hold so much."""
        for name, each in mib.items():
            self.pods[name].mib = each
        self.tree.hold(list(self.pods.values()))

    def set_slo(self, threshold_percent: int, **more: Any) -> None:
        """Let the NodeSLO have this threshold, and more of its spec."""
        self._slo = _nodeslo(threshold_percent, **more)
        self._list()

    @property
    def gone(self) -> list[str]:
        """The UIDs of whom the server or the runtime was made to end, the first first."""
        return [uid for _, uid in sorted({*self.server.evicted, *self.runtime.stopped})]

    def name_of(self, uid: str) -> str:
        return next((name for name, pod in self.pods.items() if pod.uid == uid), uid)

    def plans(self) -> list[PlanDecided]:
        return [event for event in self.events if isinstance(event, PlanDecided)]

    def failed_ticks(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, TickFailed)]

    # The agent.
    def start(self) -> None:
        """Start an agent, which finds what the one before it left. Raises what its start raises."""
        self._agent = contextlib.ExitStack()
        with self._alive():
            self._loop = self._agent.enter_context(_SteppedLoop(self))
            scope = open_scope(hierarchy.find_memory_hierarchy(), self.config.node_cgroup)
            acting = acquire_node_lock(self.config, scope, self._agent)
            assert acting is not None
            source = ListedSource(self.server)
            measuring = open_measuring(self.config, scope, source, self._agent)
            actions = run.open_actions(self.config, self._agent)
            made = run._open_agent(self.config, scope, self._loop, measuring, acting, actions, None, self._agent)
            self._ticking, self._sinks, executor, _ = made
            self._executor = getattr(executor, "_api", executor)
            self.is_running = True

    def run(self, seconds: float) -> None:
        """Let so much time go by. An agent that is killed meanwhile is not there for the rest of it."""
        end_ns = self.clock.ns + int(seconds * NS_PER_S)
        if self.is_running:
            self._loop.until_ns = end_ns
            with self._alive():
                run._loop(self.config, self._loop, self._tick, self._sinks, lambda: self.clock.ns >= end_ns)
        self.clock.ns = max(self.clock.ns, end_ns)
        self.work()

    def stop(self) -> None:
        """End the agent as SIGTERM does."""
        with self._alive():
            self._agent.close()
        self.is_running = False

    def kill(self) -> None:
        """End it as SIGKILL does."""
        self.is_running = False
        self._agent.pop_all()
        self.faults.bury()

    def worker_due_ns(self) -> int | None:
        """When the executor's worker has something to do."""
        due_ns = self._executor.due_ns() if self.is_running else None
        return None if due_ns is None else max(due_ns, self.server.slow_until_ns)

    def work(self) -> None:
        """Do what the executor's threads and the kubelet do."""
        if self.is_running and self.clock.ns >= self.server.slow_until_ns:
            self._executor.step(self.clock.ns)
        was_running, self.faults.is_running = self.faults.is_running, False
        for uid in self.gone:
            self._terminating.setdefault(uid, self.clock.ns + self._random.randrange(NS_PER_S))
        for name, pod in list(self.pods.items()):
            if self._terminating.get(pod.uid, self.clock.ns + 1) <= self.clock.ns:
                self.remove(name)
                self.hold()
        self.faults.is_running = was_running

    def close(self) -> None:
        """Kill what still runs."""
        if self.is_running:
            self.kill()
        self._stack.close()

    def __enter__(self) -> SimulatedNode:
        named = self._stack.enter_context
        random.seed(self._random.random())
        named(self.clock.in_force())
        named(self.faults.in_force())
        mounts = [hierarchy._Mount("cgroup2", "/", self.tree.mount, ())]
        named(mock.patch.object(hierarchy, "_cgroup_mounts", lambda _: mounts))
        named(mock.patch("koordebpf.kube.http.transport.open_cluster", lambda *_: self.server))
        named(mock.patch("koordebpf.agent.executors.ApiExecutor", SteppedApiExecutor))
        named(mock.patch("koordebpf.act.evict.cri.CriExecutor", SteppedCriExecutor))
        named(mock.patch("koordebpf.kube.clients.cri.Cri", lambda _: self.runtime))
        named(mock.patch.object(run, "EventPoster", lambda _: None))
        named(mock.patch.object(run, "open_sinks", self._opened(run.open_sinks)))
        named(mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(int=self._random.getrandbits(128))))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            with self.faults.running():
                yield
        except Killed:
            self.kill()
        except Exception:
            if not self.is_running:  # a start that fails: its process ends
                self.kill()
            raise

    def _tick(self) -> int:
        self.ticks += 1
        due_ns = self._ticking.tick()
        self.work()
        return due_ns

    # Every event is kept, and every decision made again at another time.
    def _opened(self, open_sinks: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*args: Any, **kwargs: Any) -> Any:
            sinks = open_sinks(*args, **kwargs)
            publish = sinks.publish

            def noting(event: Event) -> None:
                if isinstance(event, RoundEnded):
                    self._judge(event)
                else:
                    self.events.append(event)
                publish(event)

            sinks.publish = noting
            return sinks

        return opened

    def _judge(self, event: RoundEnded) -> None:
        self.rounds += 1
        was_running, self.faults.is_running = self.faults.is_running, False
        later_ns = self._random.randrange(_DAY_S) * NS_PER_S
        self.clock.ns += later_ns
        try:
            if encode_decision(decided_again(event.tick)) != encode_decision(event.decision):
                self.decided_otherwise.append(event)
        finally:
            self.clock.ns -= later_ns
            self.faults.is_running = was_running

    def _list(self) -> None:
        self.server.put([*(pod.object for pod in self.pods.values()), self._slo])


def _nodeslo(threshold_percent: int, **more: Any) -> dict[str, Any]:
    strategy = {
        "enable": True,
        "memoryEvictThresholdPercent": threshold_percent,
        "memoryEvictLowerPercent": threshold_percent - 5,
    }
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "node"},
        "spec": {"resourceUsedThresholdWithBE": strategy, **more},
    }
