"""What decisions read of a frame is filled in the frames of a live agent, or they say that they lack it.

Nothing is declared: each strategy, and each plugin inside, is watched while it decides an agent's frames once more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from koordebpf.decision.decide_tick import TickFrame, tick_view
from koordebpf.decision.strategies import STRATEGIES
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY
from koordebpf.store.frames import read_ticks
from koordebpf.strategies.katalyst.inner import INNER
from koordebpf.strategies.katalyst.plugins.cnr import NETWORK
from koordebpf.strategies.katalyst.plugins.memory import RSS_OVERUSE
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.rigs.live_node import LiveNode, or_skipped
from tests.support.nodes import NodeCgroup
from tests.support.reads import filled_in, inputs_of, strategy_views

pytestmark = pytest.mark.slow
ROUNDS = 12
INNER_ON = {section: {"isOn": True} for section in INNER} | {
    "rootfsOveruse": {"isOn": True, "shared": "25%"},
    "rootfsPressure": {"isOn": True, "imageFs": "/"},
}
# Nothing there is an answer, of a node on which nothing happens.
ANSWERS = {
    *("Frame.pending", "Frame.refused", "Frame.evictions", "Frame.lastEvictNs", "Frame.lastCpuEvictNs"),
    *("Frame.ownPodUid", "Frame.podDisruptionBudgets", "Frame.nodeResourceTopology"),
    *("NodeForecast.threshold", "Measured.stall_window"),  # nothing grows or stalls
    "Measured.parts.bePageCacheSuppress",  # measured once the machine refaults
    "PodDirectories.volumes",  # there are none
    "KatalystMeasured.remote_plugins",
    *("HooksMeasured.applications", "HooksMeasured.isolated"),
    *("BlockIOMeasured.devices", "BlockIOMeasured.groups"),  # of limits that no NodeSLO sets
    "Measured.parts.suppress",  # of a round that a burst began
    "BeQuota.quota_us",
    *("CpuMeasured.manager", "CpuPlacement.owners", "CpuPlacement.reserved_cpus", "CpuPlacement.system_cpus"),
    *("CpuUsage.host_applications", "CpuUsage.other_pods"),  # there are none
    *("CachePod.activated_pages", "CachePod.stalled_us"),  # docs/qos/page-cache.md: v1 counts neither
    "SystemMemory.pressure",  # of cgroup v2 alone: docs/katalyst.md
}

# What this calm node on cgroup v1 has not, by the test of a live agent that has it.
ELSEWHERE = {
    "host/test_block_io_agent.py": ("BlockIOMeasured.files", "BlockIOPod.volumes", "PodDirectories.volumes"),
    "host/test_cpu_burst_live.py": ("BurstContainer.throttled_ratio",),
    "host/test_fruitless.py": ("PastEviction.workload", "PendingRelease.due_ns", "PendingRelease.failed_ns"),
    "host/test_grace.py": ("PendingRelease.problem",),
    "host/test_katalyst_cnr_live.py": (
        *("Cnr.allocatable", "Cnr.nics", "Cnr.numa", "CnrZone.allocatable", "CnrZone.allocations"),
        *("KatalystMeasured.cnr", "KatalystMeasured.links"),
    ),
    "host/test_katalyst_inner_live.py": ("SystemMemory.pods_pressure", "SystemMemory.stolen_pages"),
    "host/test_katalyst_numa.py": ("KatalystMeasured.numa", "NumaMemory.pods"),
    "host/test_katalyst_rootfs_live.py": ("ImageFs.inodes", "ImageFs.inodes_free", "KatalystMeasured.image_fs"),
    "host/test_lost_api_server.py": ("RefusedEviction.unanswered_ns",),
    "host/test_memory_qos_live.py": (
        *("MemoryQosMeasured.above", "Protection.low_bytes", "Protection.min_bytes"),
        "NodeMeasure.psi_some",  # of cgroup v2
    ),
    "host/test_page_cache.py": ("PageCacheMeasured.files", "PageCacheMeasured.pods", "PageCacheMeasured.sensitive"),
    "host/test_proactive_reclaim.py": ("ReclaimMeasured.pods", "ReclaimMeasured.sensitive_us"),
    "host/test_resctrl.py": (  # over a fake of its files: no CPU that tests run on has them
        *("ResctrlMeasured.foreign", "ResctrlMeasured.groups", "ResctrlMeasured.l3"),
        *("ResctrlMeasured.mb", "ResctrlMeasured.pods"),
    ),
    "host/test_scenarios.py": ("LedgerView.rows", "Party.uid", "PodMeasure.stall", "PodView.stall"),
    "node/test_bound_cpus.py": ("CpuManager.pinned", "CpuManager.shared"),
}


class InputsNode(LiveNode):
    """A latency-sensitive pod with limits and a best-effort one, of a Node and a NodeSLO that leave nothing out."""

    def fill(self) -> None:
        (container,) = self.add_pod("ls", be=False)
        self.add_pod("be")
        batch = {BATCH_CPU: "500", BATCH_MEMORY: "64Mi"}
        for pod, amounts in zip(self.node.pods, ({"cpu": "100m", "memory": "64Mi"}, batch), strict=True):
            pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        for directory in (container.parent, container):
            self.limit_cpu(directory, 10_000)

    def arguments(self, folder: Path) -> tuple[object, ...]:
        amounts = {"cpu": "2", "memory": "1Gi", BATCH_CPU: "2000", BATCH_MEMORY: "512Mi"}
        status = {"capacity": {"cpu": "2", "memory": "1Gi"}, "allocatable": amounts}
        made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}, "status": status}
        manifest = self.write_manifest(
            folder,
            [made],
            resourceUsedThresholdWithBE={"enable": True},
            resourceQOSStrategy={"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}},
            cpuBurstStrategy={"policy": "auto"},
        )
        gates = {each.gate: True for each in STRATEGIES}
        katalyst = {"inner": INNER_ON, "sync": "1s"}
        return self.agent_arguments(manifest, featureGates=gates, eviction={"katalyst": katalyst})


class Seen(NamedTuple):
    ticks: list[TickFrame]
    ready: str  # /readyz?verbose
    arguments: tuple[object, ...]
    last: Path  # the last round


def koordebpf(*arguments: object) -> str:
    command = [sys.executable, "-m", "koordebpf", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def seen(node: NodeCgroup, tmp_path: Path) -> Iterator[Seen]:
    with closing(or_skipped(lambda: InputsNode(node, levels=None))) as rig:
        arguments = rig.arguments(tmp_path)
        with LiveAgent(tmp_path, *arguments) as agent:
            agent.becomes_ready()
            until(lambda: agent.frames.exists() and agent.frames.read_bytes().count(b"\n") >= ROUNDS, "rounds")
            ready = agent.get("/readyz?verbose")[1]
            assert agent.stop() == 0
            ticks = [each.tick for each in read_ticks(agent.frames)]
            last = tmp_path / "last.json"
            last.write_bytes(agent.frames.read_bytes().splitlines()[-1])
            yield Seen(ticks, ready, arguments, last)


def test_what_is_read_is_there_or_said_to_be_lacking(seen: Seen) -> None:
    inputs = inputs_of(seen.ticks)
    assert inputs.keys() == {each.name for each in (*STRATEGIES, *INNER.values())}
    missing = {name: sorted(each.silent - each.filled - ANSWERS) for name, each in inputs.items()}
    assert {name: fields for name, fields in missing.items() if fields} == {}
    # One that reads nothing that may be absent was not watched.
    assert [name for name, each in inputs.items() if not each.read] == []
    assert "MemoryParts.shmem_bytes" in inputs[RSS_OVERUSE.name].filled


def test_what_a_plugin_lacks_is_said_in_the_same_words_everywhere(seen: Seen) -> None:
    names = {each.name for each in INNER.values()}
    now = inputs_of(seen.ticks[-1:])  # what was not measured yet at first is there by now
    lacking = {name: each.lacks for name, each in now.items() if name in names and each.lacks}
    assert NETWORK.name in lacking  # there is no CustomNodeResource
    plan = " ".join(koordebpf("plan", seen.last).split())
    doctor = json.loads(koordebpf("doctor", "--json", *seen.arguments[2:]))
    of_doctor = {each["signal"]: each["reason"] for each in doctor["katalyst"] if not each["works"]}
    for name, (sentence, *others) in lacking.items():
        assert others == []
        assert f"[!]plugin {name} lacks input: {sentence}" in seen.ready
        assert f"{name} lacks input: {sentence}" in plan
        assert of_doctor[name.removesuffix("-eviction-plugin")] == sentence
    assert {name for name in names if name.removesuffix("-eviction-plugin") in of_doctor} <= lacking.keys()


# What unit tests of decisions fill in frames that they write by hand, in the same process as the one that watches them.
# Of the tests of strategies and jobs those of a decision alone.
OF_FEATURES = (
    "strategies/block_io/test_block_io_limits",
    "strategies/cpu_burst/test_cpu_burst",
    *(f"strategies/cpu_suppress/test_{name}" for name in ("memory_hold", "suppress_wake")),
    *(f"strategies/hooks/test_hooks_{name}" for name in ("batch_resource", "cpuset", "others")),
    *(f"strategies/katalyst/test_katalyst_{name}" for name in ("cnr_plugins", "news", "plugins", "records")),
    *(f"strategies/katalyst/test_{name}" for name in ("katalyst_rootfs", "katalyst_served", "killers_by_level")),
    *(f"strategies/memory_qos/test_memory_{name}" for name in ("protection", "qos_rules")),
    "strategies/page_cache/test_page_cache",
    "strategies/proactive_reclaim/test_proactive_reclaim",
    "strategies/resctrl/test_resctrl",
    "strategies/system_config/test_system_config",
    "jobs/node_topology/test_topology_report",
)
_OF_TESTS = """
import json, sys, pytest
from tests.support.reads import watched_reads
with watched_reads() as reads:
    code = pytest.main(["-q", "-p", "no:cacheprovider", "tests/unit/policy", *sys.argv[2:]])
json.dump([code, sorted(reads.filled)], open(sys.argv[1], "w"))
"""


def test_what_decisions_read_in_frames_of_tests_a_live_agent_fills(seen: Seen, tmp_path: Path) -> None:
    path = tmp_path / "filled.json"
    modules = [f"tests/{name}.py" for name in OF_FEATURES]
    command = [sys.executable, "-c", _OF_TESTS, path, *modules]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    code, of_tests = json.loads(path.read_text())
    assert code == 0 and "MemoryParts.shmem_bytes" in of_tests
    views = [tick_view(each) for each in seen.ticks]
    live = set().union(*(filled_in((each, *strategy_views(each))) for each in views))
    elsewhere = {field for fields in ELSEWHERE.values() for field in fields}
    assert sorted(set(of_tests) - live - ANSWERS - elsewhere) == []
    assert sorted(elsewhere - set(of_tests)) == []
    assert [module for module in ELSEWHERE if not (ROOT / "tests" / module).is_file()] == []
