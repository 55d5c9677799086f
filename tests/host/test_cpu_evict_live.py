"""CPU eviction on the running kernel: real processes burn or starve, the agent says so, kills one pod, and stops."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.apiserver import node as node_object
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import LiveCluster, kubeconfig
from tests.host.live_cluster import busy as refused
from tests.host.rigs.live_node import LiveNode, burner, or_skipped, with_strategy
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

BATCH = "kubernetes.io/batch-cpu"
ENABLED = {"koordinator.sh/qosClass": "BE", "koordinator.sh/eviction-enabled": "true"}
_HUM = "import time\nwhile True: sum(range(2000)); time.sleep(0.1)"
GATES = "BEMemoryEvict=false,BECPUSuppress=false"


class BusyNode:
    """A node of real cgroups; `burn` puts a process that uses all CPU it gets into a pod."""

    def __init__(self, node: NodeCgroup, folder: Path) -> None:
        self.node = node
        self.manifest = folder / "pods.json"
        self._config = folder / "config.yaml"
        self._containers: dict[str, Path] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._live: LiveNode | None = None

    def add(self, name: str, *, asks: int = 0, **more: Any) -> None:
        """Make a pod that asks for so much batch-cpu."""
        (self._containers[name],) = self.node.add_pod(name, **more)
        if asks:
            self.node.pods[-1]["spec"]["containers"][0]["resources"] = {"requests": {BATCH: str(asks)}}

    @property
    def live(self) -> LiveNode:
        if self._live is None:
            self._live = LiveNode(self.node)
        return self._live

    def burn(self, name: str) -> subprocess.Popen[bytes]:
        return self._run(name, burner())

    def hum(self, name: str) -> subprocess.Popen[bytes]:
        """Start a process that works for a moment, ten times a second."""
        return self._run(name, subprocess.Popen([sys.executable, "-S", "-c", _HUM]))

    def grow(self, name: str, size_bytes: int) -> None:
        """Start a process that takes so much memory, and keeps it."""
        program = f"import time; input(); kept = b'x' * {size_bytes}; time.sleep(600)"
        process = subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE)
        self._run(name, process)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()

    def _run(self, name: str, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        self._processes.append(process)
        self.live.hierarchies.join(self._containers[name], process.pid)
        return process

    def arguments(
        self, gates: str, strategy: dict[str, Any], *, enforce: bool = True, **eviction: object
    ) -> tuple[object, ...]:
        self.tell(strategy)
        of_node = ("--config", self.config(**eviction), "--pods", self.manifest, "--node-cgroup", self.node.path)
        return *of_node, "--feature-gates", gates, "--executor", "cgroup", *(["--enforce"] if enforce else [])

    def config(self, **eviction: object) -> Path:
        whole = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration", "eviction": eviction}
        self._config.write_text(json.dumps(whole))
        return self._config

    def tell(self, strategy: dict[str, Any], *, without: str | None = None) -> None:
        """Write the pods and the strategy as an API server has them, one pod gone or not."""
        self.node.pods = [each for each in self.node.pods if each["metadata"]["name"] != without]
        status = {"capacity": {"cpu": "2"}, "allocatable": {BATCH: "2000", "cpu": "2"}}
        more = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "status": status}]
        part = self.manifest.with_suffix(".new")
        with_strategy(self.node.write_manifest(part), strategy, more)
        part.rename(self.manifest)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        if self._live is not None:
            self._live.close()


@pytest.fixture
def busy(node: NodeCgroup, tmp_path: Path) -> Iterator[BusyNode]:
    made = BusyNode(node, tmp_path)
    yield made
    made.close()


def victims(line: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["name"], each["result"]) for each in line["outcomes"]]


def fired(line: dict[str, Any]) -> list[str]:
    return [each["verdict"]["feature"] for each in line["features"] if each["victims"]]


@pytest.mark.slow
def test_best_effort_pods_that_starve_are_fewer_and_then_it_stops(busy: BusyNode, tmp_path: Path) -> None:
    # GIVEN two best-effort pods that ask for 2 CPUs, and suppression that leaves them the least there is
    busy.add("ls", be=False)
    busy.add("low", asks=1000, priority=5000)
    busy.add("high", asks=1000)
    or_skipped(lambda: busy.live)
    burning = {name: busy.burn(name) for name in ("low", "high", "ls")}
    strategy = {
        "cpuSuppressPolicy": "cfsQuota",
        "cpuSuppressThresholdPercent": 5,
        "cpuEvictBESatisfactionLowerPercent": 50,
        "cpuEvictBESatisfactionUpperPercent": 50,
        "cpuEvictBEUsageThresholdPercent": 20,
        "cpuEvictTimeWindowSeconds": 3,
    }
    gates = "BECPUEvict=true,BEMemoryEvict=false"
    with LiveAgent(tmp_path, *busy.arguments(gates, strategy, cpuCoolTime=f"{patience(2):g}s")) as agent:
        line = agent.has_plan()
        # THEN the pod of lower priority is evicted, and none of its processes is left
        assert (fired(line), victims(line)) == (["BECPUEvict"], [("low", "done")])
        assert burning["low"].wait() != 0
        (feature,) = [each for each in line["features"] if each["victims"]]
        assert feature["balance"]["credit"] == 1000
        agent.said("evicting default/low (priority 5000, 1 CPU): best-effort pods may have ")
        name = 'koordebpf_evictions_total{executor="cgroup",reason="BECPUEvict",result="done"}'
        until(lambda: agent.metric(name) == 1, lambda: agent.log)
        # WHEN its object is gone too, and the other pods request no more than there is THEN no other pod is evicted
        busy.node.pods[-1]["spec"]["containers"][0]["resources"] = {"requests": {BATCH: "1"}}
        busy.tell(strategy, without="low")
        agent.said("no longer short of CPU: ")
        need = 'koordebpf_need_cpu_cores{feature="BECPUEvict"}'  # the metrics follow the log
        until(lambda: agent.metric(need) == 0, lambda: agent.log)
        assert burning["high"].poll() is None
        assert agent.stop() == 0
    assert [victims(each) for each in agent.plans()] == [[("low", "done")]]


@pytest.mark.slow
def test_by_what_is_allocatable_nothing_has_to_be_suppressed(busy: BusyNode, tmp_path: Path) -> None:
    # GIVEN pods that ask for 8 CPUs of batch-cpu where 2 are allocatable, and use what a fifth of one is
    busy.add("low", asks=6500, priority=5000)
    busy.add("high", asks=1500)
    or_skipped(lambda: busy.live)
    burning = {name: busy.burn(name) for name in ("low", "high")}
    strategy = {
        "cpuEvictPolicy": "evictByAllocatable",
        "cpuEvictBESatisfactionLowerPercent": 50,
        "cpuEvictBESatisfactionUpperPercent": 60,
        "cpuEvictBEUsageThresholdPercent": 5,
    }
    with LiveAgent(tmp_path, *busy.arguments(f"BECPUEvict=true,{GATES}", strategy)) as agent:
        assert victims(agent.has_plan()) == [("low", "done")]
        agent.said("best-effort pods may have 2 CPUs, 25 % ≤ 50 % of what they ask for")
        assert burning["low"].wait() != 0
        assert burning["high"].poll() is None
        assert agent.stop() == 0


@pytest.mark.slow
def test_a_killed_pod_whose_object_stays_is_killed_again_only_once_it_has_processes(
    busy: BusyNode, tmp_path: Path
) -> None:
    # GIVEN pods that ask for 8 CPUs of batch-cpu where 2 are allocatable, one of which is killed
    busy.add("low", asks=6500, priority=5000)
    busy.add("high", asks=1500)
    or_skipped(lambda: busy.live)
    burning = {name: busy.burn(name) for name in ("low", "high")}
    strategy = {
        "cpuEvictPolicy": "evictByAllocatable",
        "cpuEvictBESatisfactionLowerPercent": 50,
        "cpuEvictBESatisfactionUpperPercent": 60,
        "cpuEvictBEUsageThresholdPercent": 5,
    }
    pause_s = patience(1)
    gates = f"BECPUEvict=true,{GATES}"
    with LiveAgent(tmp_path, *busy.arguments(gates, strategy, cpuCoolTime=f"{pause_s:g}s")) as agent:
        assert victims(agent.has_plan()) == [("low", "done")]
        assert burning["low"].wait() != 0
        # WHEN its object and its request stay for several pauses THEN neither it nor the other pod is evicted
        time.sleep(5 * pause_s)
        assert burning["high"].poll() is None
        assert [victims(each) for each in agent.plans()] == [[("low", "done")]], agent.log
        # WHEN a process is started in it THEN it is evicted again
        again = busy.burn("low")
        assert victims(agent.has_plan(2)) == [("low", "done")]
        assert again.wait() != 0
        time.sleep(3 * pause_s)
        assert burning["high"].poll() is None
        assert agent.stop() == 0
    assert [victims(each) for each in agent.plans()] == [[("low", "done")]] * 2, agent.log


@pytest.mark.slow
def test_a_node_without_cpu_loses_its_hog_and_no_pod_for_what_its_window_remembers(
    busy: BusyNode, tmp_path: Path
) -> None:
    # GIVEN a window that is much longer than the pause after an eviction, and a pod beside the hog that hardly works
    for name, priority in (("hog", 5000), ("calm", 5500)):
        busy.add(name, priority=priority, **{"labels": ENABLED})
    or_skipped(lambda: busy.live)
    hog, calm = busy.burn("hog"), busy.hum("calm")
    strategy = {
        "cpuEvictThresholdPercent": 6,  # and 4 % to come down to, which the calm one does not use
        "cpuEvictTimeWindowSeconds": 30,
        "evictEnabledPriorityThreshold": 5999,
    }
    pause = f"{patience(1):g}s"
    with LiveAgent(tmp_path, *busy.arguments(f"CPUEvict=true,{GATES}", strategy, cpuCoolTime=pause)) as agent:
        line = agent.has_plan()
        assert (fired(line), victims(line)) == (["CPUEvict"], [("hog", "done")])
        assert hog.wait() != 0
        agent.said("no longer short of CPU: ")
        ticks = agent.metric("koordebpf_ticks_total")
        until(lambda: agent.metric("koordebpf_ticks_total") > ticks + 3, "more looks")
        assert calm.poll() is None
        assert agent.stop() == 0
    assert [victims(each) for each in agent.plans()] == [[("hog", "done")]], agent.log


@pytest.mark.slow
def test_pods_are_evicted_for_what_is_requested_too_much_of_though_they_work(busy: BusyNode, tmp_path: Path) -> None:
    busy.add("first", asks=1900, labels=ENABLED)
    busy.add("second", asks=1800, priority=5000, labels=ENABLED)
    or_skipped(lambda: busy.live)
    burning = {name: busy.burn(name) for name in ("first", "second")}
    with LiveAgent(tmp_path, *busy.arguments(f"CPUAllocatableEvict=true,{GATES}", {})) as agent:
        line = agent.has_plan()
        assert (fired(line), victims(line)) == (["CPUAllocatableEvict"], [("second", "done")])
        agent.said("kubernetes.io/batch-cpu requested at 185 % > 110 % of allocatable, need 1.7 CPUs")
        assert burning["second"].wait() != 0
        busy.tell({}, without="second")
        agent.said("no longer short of CPU: kubernetes.io/batch-cpu requested at 95 % ≤ 110 % of allocatable")
        assert burning["first"].poll() is None
        assert agent.stop() == 0
    assert len(agent.plans()) == 1


@pytest.mark.slow
def test_a_shortage_of_memory_does_not_wait_for_one_of_cpu(busy: BusyNode, tmp_path: Path) -> None:
    # GIVEN a round for CPU after which the next one is a long time away
    busy.add("asks", asks=3000, labels=ENABLED)
    busy.add("grows", priority=5000)
    or_skipped(lambda: busy.live)
    gates = "CPUAllocatableEvict=true,BECPUSuppress=false"
    strategy = {"memoryEvictThresholdPercent": 10, "memoryEvictLowerPercent": 8}
    with LiveAgent(tmp_path, *busy.arguments(gates, strategy, enforce=False, coolTime="10m")) as agent:
        assert fired(agent.has_plan(1)) == ["CPUAllocatableEvict"]
        # WHEN the node's memory is short before that THEN it is decided on at once
        busy.grow("grows", 200 * MIB)
        line = agent.has_plan(2)
        assert "BEMemoryEvict" in fired(line)
        assert ("grows", "dry_run") in victims(line)
        assert agent.stop() == 0


@pytest.mark.slow
def test_through_the_api_server_a_refusal_is_no_eviction_and_the_next_is_evicted_at_once(
    busy: BusyNode, tmp_path: Path
) -> None:
    # GIVEN a pause of ten minutes after an eviction, and an API server that refuses the first one for longer
    busy.add("first", asks=2500, priority=5000, labels=ENABLED)
    busy.add("second", asks=2500, labels=ENABLED)
    or_skipped(lambda: busy.live)
    burning = {name: busy.burn(name) for name in ("first", "second")}
    cluster = LiveCluster(busy.node)
    with contextlib.closing(cluster):
        cluster.nodes.put("MODIFIED", node_object(1) | {"status": {"allocatable": {BATCH: "2500"}}})
        cluster.answers["first"].append(refused(600))
        config = busy.config(cpuCoolTime="10m")
        given = ("--source", "api", "--executor", "api", "--node-name", "n1", "--node-cgroup", busy.node.path)
        given += ("--kubeconfig", kubeconfig(tmp_path / "kubeconfig", cluster.server.url), "--config", config)
        gates = f"CPUAllocatableEvict=true,{GATES}"
        with LiveAgent(tmp_path, *given, "--feature-gates", gates, "--enforce") as agent:
            lines = [agent.has_plan(1), agent.has_plan(2)]
            assert [victims(line) for line in lines] == [[("first", "refused")], [("second", "done")]]
            assert cluster.asked() == ["first", "second"]
            assert burning["second"].wait() != 0
            until(lambda: len(cluster.events) == 2, "Events")
            assert [event["reason"] for event in cluster.events] == ["evictPodFail", "evictPodSuccess"]
            assert cluster.events[1]["message"] == (
                "evict Pod:default/second, reason: evicted,"
                " message: trigger by koordlet feature CPUAllocatableEvict, kill pod: second"
            )
            for result in ("refused", "done"):
                name = f'koordebpf_evictions_total{{executor="api",reason="CPUAllocatableEvict",result="{result}"}}'
                assert agent.metric(name) == 1
            assert agent.stop() == 0
        assert burning["first"].poll() is None
