"""A whole agent, tick by tick: cgroups are directories with files, the clock is an argument, and no test is root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.tick import Agent
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.decide_tick import decided_again
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.store.sink import Event, PlanDecided, RoundEnded, TickEnded
from koordebpf.store.v1.encode import encode_decision
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S

LIMIT = 1000 * MIB
UIDS = {name: f"00000000-0000-0000-0000-00000000000{at}" for at, name in enumerate(("hog", "calm"))}


class StillClock:
    """A clock that stands until it is put forward."""

    def __init__(self) -> None:
        self.ns = 1_000 * NS_PER_S

    def now_ns(self) -> int:
        return self.ns

    def wall_s(self) -> float:
        return 1_700_000_000 + self.ns / NS_PER_S

    def suspended_ns(self) -> int:
        return 0


class Recorder:
    """The sink that keeps every event."""

    name = "recorder"

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        self.events.append(event)

    def take(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


class Node:
    """A node cgroup with two best-effort pods, and its agent."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.sink = StillClock(), Recorder()
        self.top = folder / "cgroup" / "node"
        self.pods = {name: self.top / "kubepods" / "besteffort" / f"pod{uid}" for name, uid in UIDS.items()}
        for path in (folder / "cgroup", self.top, self.top / "kubepods", self.top / "kubepods" / "besteffort"):
            self.write(path, 0)
        (self.top / "memory.max").write_text(f"{LIMIT}\n")
        self.hold(hog=300, calm=50)
        manifest = folder / "pods.json"
        manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*map(_pod, UIDS), _NODESLO]}))
        config = AgentConfig(files=(manifest,), node_cgroup=self.top, eviction=EvictSettings(cool_time_ns=NS_PER_S))
        scope = open_scope(MemoryHierarchy(2, folder / "cgroup", 0), self.top)
        source = FileSource(config.files)
        self.watch = NodeWatch(scope, source, config.min_stall_ns, backend="files")
        source.start(lambda: None)
        self.collector = MemoryCollector(scope, self.watch.signals, self.watch.index, self.clock)
        outcomes = OutcomeQueue(lambda: None)
        self.executor = CgroupExecutor(lambda *_: None, outcomes)
        self.agent = Agent(
            config,
            AgentParts(
                watch=self.watch,
                collector=self.collector,
                executor=self.executor,
                outcomes=outcomes,
                sinks=self.sink,
                clock=self.clock,
            ),
        )

    def write(self, path: Path, mib: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        bytes_ = mib * MIB
        zero = "active_anon inactive_file active_file unevictable shmem slab_reclaimable workingset_refault_anon"
        lines = [f"inactive_anon {bytes_}", f"anon {bytes_}", *(f"{name} 0" for name in zero.split())]
        (path / "memory.stat").write_text("\n".join(lines) + "\n")
        (path / "memory.current").write_text(f"{bytes_}\n")
        (path / "memory.max").write_text("max\n")
        (path / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n")
        (path / "cgroup.procs").write_text("")

    def hold(self, **mib: int) -> None:
        """Let the pods hold so much."""
        for name, each in mib.items():
            self.write(self.pods[name], each)
        used = sum(int((path / "memory.current").read_text()) for path in self.pods.values()) // MIB
        self.write(self.top, used)
        (self.top / "memory.max").write_text(f"{LIMIT}\n")

    def tick(self, after_ns: int) -> int:
        """Put the clock forward and tick; return in how many nanoseconds the next one is due."""
        self.clock.ns += after_ns
        return self.agent.tick() - self.clock.ns

    def close(self) -> None:
        self.executor.close()
        self.collector.close()
        self.watch.close()


def _pod(name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "spark",
            "uid": UIDS[name],
            "labels": {"koordinator.sh/qosClass": "BE"},
        },
        "spec": {"priority": 5500 if name == "calm" else 5000, "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort"},
    }


_NODESLO = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": "node"},
    "spec": {
        "resourceUsedThresholdWithBE": {
            "enable": True,
            "memoryEvictThresholdPercent": 70,
            "memoryEvictLowerPercent": 65,
        }
    },
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_below_its_threshold_it_measures_and_decides_nothing(node: Node) -> None:
    due = [node.tick(NS_PER_S) for _ in range(4)]
    assert 0 < max(due) <= NS_PER_S
    assert node.sink.take(PlanDecided) == []
    assert len(node.sink.take(TickEnded)) == 4
    (*_, last) = node.sink.take(RoundEnded)
    assert isinstance(last, RoundEnded)
    assert [each.name for each in last.view.pods] == ["hog", "calm"]
    assert [each.memory.usage_bytes for each in last.view.pods if each.memory] == [300 * MIB, 50 * MIB]


def test_a_crossing_is_decided_on_in_the_tick_that_sees_it(node: Node) -> None:
    node.tick(NS_PER_S)
    node.hold(hog=700)
    node.tick(10 * NS_PER_MS)
    (decided,) = node.sink.take(PlanDecided)
    assert isinstance(decided, PlanDecided)
    assert [victim.candidate.name for victim in decided.plan.victims] == ["hog"]
    assert [outcome.result.value for outcome in decided.outcomes] == ["dry_run"]
    assert decided.decided_ns == node.clock.ns
    assert node.sink.take(OutcomeArrived) == []  # of a dry run nothing comes later


def test_the_same_shortage_is_decided_on_again_after_the_cool_time_only(node: Node) -> None:
    node.tick(NS_PER_S)
    node.hold(hog=700)
    for _ in range(5):
        node.tick(100 * NS_PER_MS)
    assert len(node.sink.take(PlanDecided)) == 1
    node.tick(NS_PER_S)
    assert len(node.sink.take(PlanDecided)) == 2


def test_it_looks_sooner_the_nearer_the_threshold_is(node: Node) -> None:
    node.tick(NS_PER_S)
    due = []
    for mib in (300, 450, 600, 640):
        node.hold(hog=mib)
        due.append(node.tick(200 * NS_PER_MS))
    assert due == sorted(due, reverse=True)
    assert due[-1] < due[0] / 4


def test_every_round_is_decided_again_from_its_frame(node: Node) -> None:
    for mib in (300, 640, 700, 750, 300):
        node.hold(hog=mib)
        node.tick(NS_PER_S)
    rounds = [event for event in node.sink.events if isinstance(event, RoundEnded)]
    assert len(rounds) >= 5
    assert any(each.decision.carried for each in rounds)
    for each in rounds:
        assert encode_decision(decided_again(each.tick)) == encode_decision(each.decision)


def test_pods_that_are_gone_are_forgotten(node: Node, tmp_path: Path) -> None:
    node.tick(NS_PER_S)
    items = json.loads((tmp_path / "pods.json").read_text())
    items["items"] = [each for each in items["items"] if each["metadata"]["name"] != "hog"]
    (tmp_path / "new.json").write_text(json.dumps(items))
    (tmp_path / "new.json").rename(tmp_path / "pods.json")
    for _ in range(40):
        node.tick(NS_PER_S)
        (*_, last) = node.sink.take(RoundEnded)
        assert isinstance(last, RoundEnded)
        if [each.name for each in last.view.pods] == ["calm"]:
            return
    pytest.fail("the pod is still there")
