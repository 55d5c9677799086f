"""A whole agent on directories with files: it is ticked by hand, and its clock stands until it is put forward."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.parts import AgentParts
from koordebpf.agent.tick import Agent
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.runner.context import Measuring
from koordebpf.store.sink import EVENTS, Event
from koordebpf.units import MIB, NS_PER_S

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
    takes = EVENTS

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        self.events.append(event)

    def take(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


class Node:
    """A node cgroup with two best-effort pods, and its agent; `gates` differ from the default, `parts` are more."""

    def __init__(self, folder: Path, *, gates: Mapping[str, bool] | None = None, **parts: Any) -> None:
        self.clock, self.sink = StillClock(), Recorder()
        self.top = folder / "cgroup" / "node"
        self.pods = {name: self.top / "kubepods" / "besteffort" / f"pod{uid}" for name, uid in UIDS.items()}
        for path in (folder / "cgroup", self.top, self.top / "kubepods", self.top / "kubepods" / "besteffort"):
            self.write(path, 0)
        (self.top / "memory.max").write_text(f"{LIMIT}\n")
        self.hold(hog=300, calm=50)
        self._manifest = folder / "pods.json"
        self.list_pods(70)
        config = AgentConfig(
            files=(self._manifest,),
            node_cgroup=self.top,
            eviction=EvictSettings(cool_time_ns=NS_PER_S),
        )
        config = replace(config, feature_gates={**config.feature_gates, **(gates or {})})
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
                measuring=Measuring.of(config, self.watch, self.collector),
                executor=self.executor,
                outcomes=outcomes,
                sinks=self.sink,
                clock=self.clock,
                **parts,
            ),
        )

    def list_pods(self, threshold_percent: int, **labels: str | None) -> None:
        """Write the pods, with these labels beside their own (None: without), and a NodeSLO with this threshold."""
        strategy = {
            "enable": True,
            "memoryEvictThresholdPercent": threshold_percent,
            "memoryEvictLowerPercent": threshold_percent - 5,
        }
        self.list_objects([*(_pod(name, labels) for name in UIDS), nodeslo(strategy)])

    def list_objects(self, items: list[dict[str, object]]) -> None:
        """Write these objects in place of all."""
        part = self._manifest.with_suffix(".part")
        part.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        part.rename(self._manifest)

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


def _pod(name: str, labels: dict[str, str | None]) -> dict[str, object]:
    spec = {"priority": 5500 if name == "calm" else 5000, "containers": [{"name": "main"}]}
    all_labels = {"koordinator.sh/qosClass": "BE", **labels}
    written = {label: value for label, value in all_labels.items() if value is not None}
    return pod_object(name, written, spec, {"phase": "Running", "qosClass": "BestEffort"})


def pod_object(
    name: str, labels: dict[str, str], spec: dict[str, object], status: dict[str, object]
) -> dict[str, object]:
    """Return the Pod of one of `UIDS`."""
    metadata = {"name": name, "namespace": "spark", "uid": UIDS[name], "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def nodeslo(strategy: dict[str, object]) -> dict[str, object]:
    """Return the node's NodeSLO with this threshold strategy."""
    spec = {"resourceUsedThresholdWithBE": strategy}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeSLO",
        "metadata": {"name": "node"},
        "spec": spec,
    }
