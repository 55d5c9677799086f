"""A sink that is given to the agent sees what happens in it: here a live eviction, in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.lifecycle.kill_support import pod_targets
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.sinks import Sinks
from koordebpf.agent.tick import Agent
from koordebpf.clock import SystemClock
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.decide_tick import decided_again, encode_decision
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.runner.context import Measuring
from koordebpf.state.outcome import Result
from koordebpf.store.sink import (
    EVENTS,
    EligibilityCounted,
    Event,
    ExemptCounted,
    MemoryReleased,
    NodeSampled,
    OomKilled,
    PlanDecided,
    PlanStarted,
    ProblemsSeen,
    RoundEnded,
    Sink,
    StallsCharged,
    TickEnded,
)
from koordebpf.units import MIB
from tests.support.loads.workloads import Hog
from tests.support.nodes import NodeCgroup
from tests.support.patience import patience


class Recorder:
    name = "recorder"
    takes = EVENTS

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        self.events.append(event)


class Broken:
    """Fails on every event."""

    name = "broken"
    takes = EVENTS

    def publish(self, event: Event) -> None:
        raise RuntimeError(f"no room for {type(event).__name__}")


@contextmanager
def agent_of(node: NodeCgroup, hierarchy: MemoryHierarchy, manifest: Path, *sinks: Sink) -> Iterator[Agent]:
    """An agent in this process that evicts by cgroup and publishes to these sinks alone."""
    config = AgentConfig(files=(manifest,), node_cgroup=node.path, enforce=True)
    scope = open_scope(hierarchy, node.path)
    with ExitStack() as stack:
        watch = stack.enter_context(NodeWatch(scope, FileSource(config.files), config.min_stall_ns))
        watch.source.start(lambda: None)
        collector = MemoryCollector(scope, watch.signals, watch.index)
        stack.callback(collector.close)
        outcomes = OutcomeQueue(lambda: None)
        executor = CgroupExecutor(pod_targets(scope, watch), outcomes, enforce=True)
        stack.callback(executor.close)
        measuring = Measuring.of(config, watch, collector)
        parts = AgentParts(measuring=measuring, executor=executor, outcomes=outcomes, sinks=Sinks(sinks, SystemClock()))
        yield Agent(config, parts)


_OF_A_STORY = {
    ProblemsSeen,
    OomKilled,
    StallsCharged,
    EligibilityCounted,
    ExemptCounted,
    PlanStarted,
    PlanDecided,
    OutcomeArrived,
    MemoryReleased,
    NodeSampled,
    RoundEnded,
    TickEnded,
}


@pytest.mark.slow
def test_a_recorder_sees_every_event_of_an_eviction(
    node: NodeCgroup, hierarchy: MemoryHierarchy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a node with a pod that is killed at its own limit, and one that takes the node above its threshold
    (limited,) = node.add_pod("limited", limit_bytes=24 * MIB)
    (container,) = node.add_pod("hog")
    recorder, manifest = Recorder(), node.write_manifest(tmp_path / "pods.json")
    with caplog.at_level(logging.ERROR), agent_of(node, hierarchy, manifest, Broken(), recorder) as agent:
        agent.tick()
        hogs = [Hog(limited, 64), Hog(container, 800)]
        # WHEN the agent evicts it, with a sink before the recorder that fails on each event
        try:
            deadline = time.monotonic() + patience(20)
            while time.monotonic() < deadline and not set(map(type, recorder.events)) >= _OF_A_STORY:
                agent.tick()
                time.sleep(0.01)
        finally:
            for hog in hogs:
                hog.stop()
    # THEN the recorder has the whole story, and what was decided before what became of it
    kinds = list(dict.fromkeys(map(type, recorder.events)))
    assert set(kinds) == _OF_A_STORY
    assert kinds.index(PlanStarted) < kinds.index(PlanDecided) < kinds.index(OutcomeArrived)
    (arrived,) = [event for event in recorder.events if isinstance(event, OutcomeArrived)]
    assert (arrived.outcome.name, arrived.outcome.result) == ("hog", Result.DONE)
    # AND each round can be decided again from its event
    rounds = [event for event in recorder.events if isinstance(event, RoundEnded)]
    assert all(encode_decision(each.decision) == encode_decision(decided_again(each.tick)) for each in rounds)
    # AND the failing sink is logged once
    assert [record.getMessage() for record in caplog.records] == [
        "sink broken failed on ProblemsSeen; more of its errors are only counted"
    ]
