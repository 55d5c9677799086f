"""Katalyst's eviction for NUMA nodes on a machine that has two: the pod that fills one is evicted, and no other pod.

Katalyst calls a node short of memory when less than 4 GiB are free in its zone Normal: `python -m tests.vm 6.12-numa`.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.demo.node import remove_subtree
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.cgroup.tables import numa_held
from koordebpf.kernel.proc.vmstat import Zoneinfo
from koordebpf.units import GIB, PAGE_BYTES
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import BUILD, Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

QOS = "katalyst.kubewharf.io/qos_level"
NUMA = "numa-memory-pressure-eviction-plugin"
WATERMARK = 4 * GIB
TIMES = 20
# Of the node that is filled, and of the other one, on which a pod holds more than the one that fills it.
HOG_MIB, TWIN_MIB = 1400, 1600
JVM_MIB = 600
FLOOD_MIB = 1300
LIMIT_MIB = 64
ROUND_S = 0.5
ROUNDS = 10  # Katalyst counts seven below the watermark before it evicts a pod
CONFIG = f"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  BEMemoryEvict: false
  KatalystEviction: true
guards:
  evictionsPerMinute: 1000
eviction:
  katalyst:
    sync: {int(ROUND_S * 1000)}ms
"""

pytestmark = pytest.mark.slow


def free_on(numa: int) -> int:
    """Return the bytes that are free in the zone Normal of a NUMA node; 0 where it has none."""
    with Zoneinfo() as zones:
        return next((each.free_pages * PAGE_BYTES for each in zones.read() if each.node == numa), 0)


def on_node(numa: int) -> list[str]:
    """Return the command that gives another one memory of that NUMA node alone."""
    return [str(BUILD / "onnode"), str(numa)]


class Pods:
    """Pods of a machine's kubelet, each with a load on one NUMA node, and the agent that watches them."""

    def __init__(self, node: NodeCgroup, folder: Path) -> None:
        self._node = node
        self._manifest = folder / "pods.json"
        self._loads: list[Hog | subprocess.Popen[bytes]] = []
        self.write()

    def write(self) -> Path:
        return self._node.write_manifest(self._manifest)

    def add(self, name: str, level: str = "reclaimed_cores", **more: object) -> Path:
        """Return the container of a new pod that is on the agent's list."""
        (container,) = self._node.add_pod(name, annotations={QOS: level}, **more)  # type: ignore[arg-type]
        self.write()
        return container

    def hold(
        self, name: str, numa: int, mib: int, level: str = "reclaimed_cores", mark_mib: int = 0, **more: object
    ) -> Hog:
        """Start a pod that takes so much memory of a NUMA node, as fast as it can."""
        container = self.add(name, level, **more)
        hog = Hog(container, mib, "--mark-mib", mark_mib, hold_s=600, huge=True, before=on_node(numa))
        self._loads.append(hog)
        return hog

    def run(self, numa: int, *command: object) -> subprocess.Popen[bytes]:
        """Start another load on a NUMA node."""
        load = subprocess.Popen([*on_node(numa), *map(str, command)], stdout=subprocess.DEVNULL)
        self._loads.append(load)
        return load

    @contextlib.contextmanager
    def added(self, name: str, **more: object) -> Iterator[Path]:
        """Give the container of a pod that is removed afterwards."""
        try:
            yield self.add(name, **more)  # type: ignore[arg-type]
        finally:
            self.remove(name)

    def path(self, name: str) -> Path:
        return self._node.pod_paths[name]

    def remove(self, name: str) -> None:
        """End what runs in a pod, and take it off the list."""
        remove_subtree(self._node.pod_paths.pop(name), self._node.version)
        self._node.pods = [each for each in self._node.pods if each["metadata"]["name"] != name]
        self.write()

    def close(self) -> None:
        for load in self._loads:
            if isinstance(load, Hog):
                load.stop()
            else:
                load.kill()
                load.wait()


@pytest.fixture(scope="module")
def pods(hierarchy: MemoryHierarchy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    if free_on(1) < WATERMARK + GIB:
        pytest.skip("not this kind of machine: it has no second NUMA node with 5 GiB of free memory")
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 64 * GIB) as node:
        made = Pods(node, tmp_path_factory.mktemp("pods"))
        yield made
        made.close()


@pytest.fixture(scope="module")
def agent(pods: Pods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveAgent]:
    """The agent of all tests: those in which no pod is evicted come first."""
    folder = tmp_path_factory.mktemp("agent")
    config = folder / "config.yaml"
    config.write_text(CONFIG)
    # On the other NUMA node: more memory than the hog takes, and a pod that would be chosen before all others.
    held = [
        pods.hold("twin", 0, TWIN_MIB),
        pods.hold("first", 0, 64, priority=5000),
        pods.hold("small", 1, 64),
        pods.hold("online", 1, 256, "shared_cores", be=False),
    ]
    for each in held:
        each.wait_for("done")
    with LiveAgent(folder, "--config", config, "--pods", pods.write(), "--enforce") as agent:
        agent.becomes_ready()
        yield agent
        assert [each.process.poll() for each in held] == [None] * len(held), agent.log
        assert agent.stop() == 0


@pytest.fixture
def evicts_none(agent: LiveAgent) -> Iterator[Callable[[], None]]:
    """Return a function that lets more rounds pass than a pod needs to be evicted, none of which evicts one."""
    before = len(agent.plans())

    def wait() -> None:
        ticks = agent.metric("koordebpf_ticks_total") + ROUNDS
        time.sleep(ROUNDS * ROUND_S)
        until(lambda: agent.metric("koordebpf_ticks_total") >= ticks, "rounds")
        assert agent.plans()[before:] == []

    yield wait
    assert agent.plans()[before:] == []


def test_each_node_and_what_a_pod_holds_of_it_are_read(pods: Pods, hierarchy: MemoryHierarchy) -> None:
    with Zoneinfo() as zones:
        values = zones.read()
    assert [each.node for each in values] == [0, 1]
    assert all(0 < each.min_pages < each.low_pages < each.high_pages for each in values)
    before = free_on(1)
    pods.hold("read", 1, 200).wait_for("done")
    held = numa_held(pods.path("read"), hierarchy.version)
    assert 200 * MIB <= held[1] < 210 * MIB
    assert held[0] < 10 * MIB
    assert 150 * MIB < before - free_on(1) < 300 * MIB
    pods.remove("read")


def test_a_fast_start_that_ends_above_the_watermark_evicts_no_pod(pods: Pods, evicts_none: Callable[[], None]) -> None:
    before = free_on(1)
    pods.hold("jvm", 1, JVM_MIB).wait_for("done")
    assert WATERMARK < free_on(1) < before - JVM_MIB * MIB * 9 // 10
    evicts_none()
    pods.remove("jvm")


def test_a_pod_that_thrashes_at_its_own_limit_evicts_no_pod(pods: Pods, evicts_none: Callable[[], None]) -> None:
    with pods.added("thrash", limit_bytes=LIMIT_MIB * MIB) as container:
        pods.run(1, BUILD / "thrash", "/var/tmp", 4 * LIMIT_MIB, 600, container / "cgroup.procs")
        stat = pods.path("thrash") / "memory.stat"
        until(lambda: value(stat, "workingset_refault_file") > 2000, "it reads again what was reclaimed")
        evicts_none()


def value(stat: Path, name: str) -> int:
    """Return a row of memory.stat."""
    return int(dict(line.split() for line in stat.read_text().splitlines())[name])


@pytest.fixture(params=["0", "7"], ids=["two lists", "generations"])
def lru(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each way in which the kernel keeps pages: what is read again is active on lists, and stays in its generation."""
    enabled = Path("/sys/kernel/mm/lru_gen/enabled")
    if not enabled.exists():
        pytest.skip("not this kind of machine: its kernel has no generations of pages")
    before = enabled.read_text()
    enabled.write_text(request.param)
    yield
    enabled.write_text(before)


@pytest.mark.usefixtures("lru")
def test_a_flood_of_page_cache_evicts_no_pod(pods: Pods, evicts_none: Callable[[], None]) -> None:
    with pods.added("flood") as container:
        flood = pods.run(1, BUILD / "cacheflood", "/var/tmp", FLOOD_MIB, 600, container / "cgroup.procs")

        def was_read(times: int) -> bool:
            assert flood.poll() is None
            rchar = re.search(r"rchar: ([0-9]+)", Path(f"/proc/{flood.pid}/io").read_text())
            return rchar is not None and int(rchar[1]) > times * FLOOD_MIB * MIB

        until(lambda: was_read(2), "the page cache fills the node, and is read again", 60)
        assert free_on(1) < WATERMARK
        evicts_none()
        assert free_on(1) < WATERMARK


def test_the_pod_that_fills_a_node_is_evicted_and_no_other_twenty_times(
    pods: Pods, agent: LiveAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(agent.plans())
    seconds = []
    for number in range(TIMES):
        crossing_mib = (free_on(1) - WATERMARK) // MIB + 1
        hog = pods.hold(name := f"hog-{number}", 1, HOG_MIB, mark_mib=crossing_mib)
        crossed_ns = hog.wait_for("mark")
        assert hog.process.wait(patience(30)) != 0, agent.log
        seconds.append((time.monotonic_ns() - crossed_ns) / 1e9)
        line = agent.has_plan(before + number + 1)
        assert [(each["name"], each["result"]) for each in line["outcomes"]] == [(name, "done")], line["sentence"]
        assert f"plugin {NUMA} met threshold in scope NumaMemory" in line["sentence"]
        pods.remove(name)
        until(lambda: free_on(1) > WATERMARK, "its memory is free again")
    assert len(agent.plans()) == before + TIMES
    with capsys.disabled():
        took = f"{statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"
        print(f"\n{TIMES} of {TIMES}; from the watermark to the end of the pod {took}")
