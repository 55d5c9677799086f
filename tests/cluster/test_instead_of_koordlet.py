"""A node with koordlet, and then the same node with koordebpf, for Koordinator's own manager and scheduler."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.units import MIB
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.koordinator import SCHEDULER, Koordinator, koordinator
from tests.cluster.koordlet import Koordlet
from tests.cluster.node import RealNode
from tests.cluster.objects import AGENT, BASE, NAMESPACE, documents, install, pod
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent

pytestmark = [pytest.mark.kubelet, pytest.mark.slow]

NODE = "colocated"
NODE_BYTES = 3 << 30
INTERVAL_S = 30  # the shortest that a NodeMetric may ask for
COLOCATION = {
    "enable": True,
    "metricReportIntervalSeconds": INTERVAL_S,
    "metricAggregateDurationSeconds": 60,
    "updateTimeThresholdSeconds": 1,
    "resourceDiffThreshold": 0.001,
}
GATES = ",".join(
    f"{each}=true"
    for each in (
        *("NodeMetricReport", "NodeTopologyReport", "PeakPrediction", "BatchResource", "CPUSetAllocator"),
        "MemoryAllocatableEvict",
    )
)
# By what batch pods request of what is left for them, and not by what the node uses.
EVICTION = {
    "enable": True,
    **{"memoryAllocatableEvictThresholdPercent": 110, "memoryAllocatableEvictLowerPercent": 100},
    **{"memoryEvictThresholdPercent": 97, "memoryEvictLowerPercent": 96},
}
BATCH = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "200Mi"}
EVICTABLE = {"koordinator.sh/eviction-enabled": "true"}
NUMA_NODE = "/sys/devices/system/node/node0/meminfo"
TOPOLOGY = "topology.node.k8s.io/v1alpha1"
# What the two say of a node that does not change, but for what the agent, outside the mounts, cannot ask kubelet.
SAME_ANNOTATIONS = ("cpu-topology", "cpu-shared-pools", "be-cpu-shared-pools", "reservation", "system-qos-resource")


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """One of its own: Koordinator brings its own definitions."""
    with control_plane(binaries.kubernetes) as plane:
        install(plane.api)
        for name in ("rbac-node-metric.yaml", "rbac-topology.yaml"):
            plane.api.create(*documents(BASE.parent / "components/instead-of-koordlet" / name))
        yield plane


@pytest.fixture(scope="module")
def real(plane: ControlPlane, binaries: Binaries) -> Iterator[RealNode]:
    made = RealNode(plane, binaries, NODE, NODE_BYTES)
    plane.api.patch(made.object, {"spec": {"taints": []}})  # of a node that was not ready: no controller here lifts it
    yield made
    made.close()


@pytest.fixture(scope="module")
def koord(plane: ControlPlane, real: RealNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Koordinator]:
    with koordinator(plane, tmp_path_factory.mktemp("koordinator"), COLOCATION) as running:
        running.start_manager()
        running.start_scheduler()
        yield running


class Seen:
    """What a cluster sees of the node while one of the two agents runs on it."""

    def __init__(self, plane: ControlPlane, koord: Koordinator, real: RealNode) -> None:
        self._plane = plane
        self._koord = koord
        self._real = real

    def report_since(self, time_s: float, check: Callable[[], None]) -> Object:
        """Wait for a report of the pod that was made after `time_s`."""

        def found() -> Object | None:
            check()
            metric = self._koord.node_metric(NODE) or {}
            status = metric.get("status", {})
            is_new = status.get("updateTime", "") > time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
            return metric if is_new and status.get("podsMetric") else None

        return dict(until(found, "a report", 4 * INTERVAL_S))

    def batch(self) -> dict[str, int]:
        """Wait until the Node has batch resources; return them."""

        def seen() -> str:
            return f"batch memory of {self._koord.allocatable(NODE)} by {self._koord.node_metric(NODE)}"

        until(self.batch_memory, seen, 4 * INTERVAL_S)
        return {name: int(amount) for name, amount in self._koord.allocatable(NODE).items() if "batch" in name}

    def batch_memory(self) -> int | None:
        """Return what is left for batch pods, in bytes; None: nothing says it."""
        amount = self._koord.allocatable(NODE).get("kubernetes.io/batch-memory")
        return None if amount is None else quantity_bytes(amount)

    def scheduled(self, name: str) -> Object:
        """Create a batch pod that Koordinator's scheduler has to find a node for; return it when it runs."""
        hog = ("/bin/hog", "--mib", 50, "--hold", 600)
        made = pod(name, "", *hog, labels=EVICTABLE, requests=BATCH, limits=BATCH)
        del made["spec"]["nodeName"]
        made["spec"]["schedulerName"] = SCHEDULER
        self._plane.api.create(made)

        def runs() -> Object | None:
            self._koord.check()
            now = self._plane.api.get(made)
            return now if now and now["status"]["phase"] == "Running" else None

        found: Object = until(runs, lambda: f"{name} to run: {self._plane.api.get(made)}", 60)
        assert found["spec"]["nodeName"] == NODE
        return found

    def limits(self, of: Object) -> dict[str, str]:
        """Return the cgroup values of a pod and its container."""
        directory = self._real.pod_cgroup(of)
        assert directory is not None
        below = directory.relative_to(self._real.cgroup)
        (container,) = of["status"]["containerStatuses"]
        levels = {"pod": below, "container": below / container["containerID"].partition("://")[2]}
        files = {"cpu": ("cpu.shares", "cpu.cfs_quota_us"), "memory": ("memory.limit_in_bytes",)}
        return {
            f"{level} {file}": (self._real.directory(controller) / path / file).read_text().strip()
            for level, path in levels.items()
            for controller, names in files.items()
            for file in names
        }

    def topology(self) -> Object | None:
        """Return the NodeResourceTopology, once it has zones."""
        named = {"apiVersion": TOPOLOGY, "kind": "NodeResourceTopology", "metadata": {"name": NODE}}
        found = self._plane.api.get(named)
        return found if found and found.get("zones") else None


def agent(plane: ControlPlane, real: RealNode, folder: Path) -> LiveAgent:
    kubeconfig = plane.service_account(NAMESPACE, AGENT)
    given = ["--source", "api", "--executor", "api", "--enforce", "--kubeconfig", kubeconfig, "--node-name", NODE]
    return LiveAgent(folder, *given, "--node-cgroup", real.cgroup, "--feature-gates", GATES)


def shape(value: Any) -> Any:
    """Return the names of fields, and of lists what their first entry has."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__


def has_limits(values: dict[str, str]) -> bool:
    """Tell whether pod and container have what BATCH asks for."""
    wanted = {"cpu.shares": "512", "cpu.cfs_quota_us": "50000", "memory.limit_in_bytes": str(200 * MIB)}
    return all(values[f"{level} {file}"] == value for level in ("pod", "container") for file, value in wanted.items())


def zones(topology: Object) -> list[tuple[str, str, dict[str, str]]]:
    return [
        (
            zone["name"],
            zone["type"],
            {each["name"]: each["capacity"] for each in zone["resources"] if each["name"].startswith(("cpu", "huge"))},
        )
        for zone in topology["zones"]
    ]


def zone_memory(topology: Object) -> int:
    """Return the memory of the only zone, in bytes."""
    ((capacity,),) = (
        [each["capacity"] for each in zone["resources"] if each["name"] == "memory"] for zone in topology["zones"]
    )
    return quantity_bytes(capacity)


def total_bytes(meminfo: str) -> int:
    """Return MemTotal of a file of the machine or of one of its NUMA nodes."""
    found = re.search(r"MemTotal: +(\d+) kB", Path(meminfo).read_text())
    assert found, meminfo
    return int(found[1]) << 10


def test_a_cluster_sees_the_same_node_when_koordlet_is_replaced(
    plane: ControlPlane, real: RealNode, koord: Koordinator, tmp_path: Path
) -> None:
    seen, suffix, at_start = Seen(plane, koord, real), secrets.token_hex(2), total_bytes(NUMA_NODE)
    steady_name = f"steady-{suffix}"
    steady = pod(steady_name, NODE, "/bin/hog", "--mib", 120, "--hold", 600, qos="LS", priority="koord-prod")
    plane.api.create(steady)
    with Koordlet(plane, real, tmp_path) as koordlet:
        theirs = seen.report_since(time.time(), koordlet.check)
        assert seen.batch()
        of_koordlet = seen.scheduled(f"by-koordlet-{suffix}")
        until(lambda: has_limits(seen.limits(of_koordlet)), lambda: f"limits: {seen.limits(of_koordlet)}", 60)
        limits_of_koordlet = seen.limits(of_koordlet)
        theirs = seen.report_since(time.time(), koordlet.check)
        topology_of_koordlet = dict(until(seen.topology, "koordlet's NodeResourceTopology"))
    plane.api.delete(of_koordlet, gracePeriodSeconds=0)

    ended_s = time.time()
    with agent(plane, real, tmp_path).becomes_ready() as ours:
        # While koordlet's last report is young the agent leaves it alone; then it takes over, before the scheduler
        # drops the node after 180 s.
        assert "koordlet" in ours.said("koordlet", 60)
        mine = seen.report_since(ended_s + 1, koord.check)
        assert time.time() - ended_s < 150
        assert seen.batch()
        of_ours = seen.scheduled(f"by-koordebpf-{suffix}")
        until(lambda: seen.limits(of_ours) == limits_of_koordlet, lambda: f"{seen.limits(of_ours)}", 30)
        plane.api.delete(topology_of_koordlet)
        topology = dict(until(seen.topology, "the agent's own NodeResourceTopology", 60))
        # Prod pods take what batch pods were promised.
        koord.configure({"clusterStrategy": EVICTION}, "resource-threshold-config")
        much = ("/bin/hog", "--mib", round(0.7 * NODE_BYTES) // MIB, "--hold", 600)
        plane.api.create(pod(f"prod-{suffix}", NODE, *much, qos="LS", priority="koord-prod", labels=EVICTABLE))
        until(lambda: seen.batch_memory() == 0, lambda: f"{koord.allocatable(NODE)}", 4 * INTERVAL_S)
        evicted = ours.has_plan()
        assert [each["name"] for each in evicted["outcomes"]] == [of_ours["metadata"]["name"]]
        assert {each["verdict"]["feature"] for each in evicted["features"] if each["victims"]} == {
            "MemoryAllocatableEvict"
        }

    report, other = mine["status"], theirs["status"]
    assert shape(report["nodeMetric"]) == shape(other["nodeMetric"])
    (pod_here,) = (each for each in report["podsMetric"] if each["name"] == steady_name)
    (pod_there,) = (each for each in other["podsMetric"] if each["name"] == steady_name)
    assert {**pod_here, "podUsage": None} == {**pod_there, "podUsage": None}
    here, there = (each["podUsage"]["resources"] for each in (pod_here, pod_there))
    assert abs(quantity_bytes(here["memory"]) - quantity_bytes(there["memory"])) < 2 * MIB
    assert abs(quantity_millicpu(here["cpu"]) - quantity_millicpu(there["cpu"])) < 100
    for name in SAME_ANNOTATIONS:
        key = f"node.koordinator.sh/{name}"
        assert json.loads(topology["metadata"]["annotations"][key]) == json.loads(
            topology_of_koordlet["metadata"]["annotations"][key]
        ), name
    assert topology["topologyPolicies"] == topology_of_koordlet["topologyPolicies"]
    assert zones(topology) == zones(topology_of_koordlet)
    # koordlet's is what the file of the NUMA node says, which leaves out memory that a hypervisor has added. That of an
    # only node is all of the machine, for the agent.
    assert zone_memory(topology) == total_bytes("/proc/meminfo")
    assert at_start <= zone_memory(topology_of_koordlet) <= total_bytes(NUMA_NODE)
