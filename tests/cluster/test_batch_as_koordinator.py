"""The same numbers as Koordinator's own manager, for nodes made at random; and Nodes that are taken over from it.

Left out of the random nodes is what docs/colocation/batch-resources.md says is different: host applications without a
class, and maxUsageRequest with pods that NodeMetric does not have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from koordebpf.controller.batch.written import explain
from koordebpf.kube.http.transport import open_cluster
from koordebpf.quantity import parse_quantity
from koordebpf.report.pages.batch import ExplainedNode
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.controllers import Running
from tests.cluster.koordinator import SLO, Koordinator, koordinator
from tests.contract.apiserver import until

pytestmark = pytest.mark.slow

NODES = 30
SEED = 7
GIB = 1 << 30
COLOCATION = {
    "enable": True,
    # So small that every difference is written.
    "resourceDiffThreshold": 1e-9,
    "updateTimeThresholdSeconds": 1,
    "cpuReclaimThresholdPercent": 70,
}
PERCENTS = {
    "cpuReclaimThresholdPercent": (20, 100),
    "memoryReclaimThresholdPercent": (20, 100),
    "midCPUThresholdPercent": (5, 100),
    "midMemoryThresholdPercent": (5, 100),
    "midUnallocatedPercent": (0, 100),
    "batchCPUThresholdPercent": (1, 60),
    "batchMemoryThresholdPercent": (1, 60),
}
BANDS = ("koord-prod", "koord-mid", "koord-batch", "koord-free")


class Dice:
    """Nodes, their pods and their reports."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _happens(self, share: float) -> bool:
        return self._random.random() < share

    def _uses(self, cpu: int, memory: int) -> Object:
        taken = self._random.randrange(cpu), self._random.randrange(memory)
        return {"resources": {"cpu": f"{taken[0]}m", "memory": str(taken[1])}}

    def strategy(self) -> dict[str, Any]:
        pick = self._random
        made: dict[str, Any] = {}
        if self._happens(0.6):
            made["memoryCalculatePolicy"] = pick.choice(["usage", "request", "maxUsageRequest"])
        if self._happens(0.4):
            made["cpuCalculatePolicy"] = pick.choice(["usage", "maxUsageRequest"])
        made |= {name: pick.randrange(*ends) for name, ends in PERCENTS.items() if self._happens(0.35)}
        if self._happens(0.2):
            shares = ("midStaticCPUReservedPercent", "midStaticMemoryReservedPercent")
            made |= {"midReclaimMode": "static", **{name: pick.randrange(60) for name in shares}}
        return made

    def node(self, name: str, strategy: dict[str, Any]) -> Object:
        pick = self._random
        cpu, memory = pick.choice([2000, 8000, 16_500, 64_000]), pick.randrange(GIB, 256 * GIB)
        annotations = {"node.koordinator.sh/colocation-strategy": json.dumps(strategy)}
        if self._happens(0.4):
            reserved = {"resources": {"cpu": "1500m", "memory": "1Gi"}, "reservedCPUs": pick.choice(["", "0-2"])}
            annotations["node.koordinator.sh/reservation"] = json.dumps(reserved)
        if self._happens(0.3):
            amounts = {"kubernetes.io/batch-cpu": "700", "kubernetes.io/batch-memory": "1Gi"}
            third = [{"name": "yarn", "priority": pick.choice(BANDS), "resources": amounts}]
            annotations["node.koordinator.sh/thirdPartyAllocations"] = json.dumps({"allocations": third})
        labels = (
            {"node.koordinator.sh/cpu-reclaim-ratio": pick.choice(["0.29", "0.8", "x"])} if self._happens(0.3) else {}
        )
        kept = pick.choice([(0, 0), (500, GIB // 4)])
        status = {
            "capacity": {"cpu": f"{cpu}m", "memory": str(memory)},
            "allocatable": {"cpu": f"{cpu - kept[0]}m", "memory": str(memory - kept[1])},
        }
        meta = {"name": name, "annotations": annotations, "labels": labels}
        return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": status}

    def pods(self, node: str) -> list[tuple[Object, str]]:
        """Return pods with the phase that each is to have."""
        pick = self._random
        made = []
        for number in range(pick.randrange(8)):
            labels = {}
            if qos := pick.choice(["LSE", "LSR", "LS", "BE", ""]):
                labels["koordinator.sh/qosClass"] = qos
            if band := pick.choice(["", *BANDS]):
                labels["koordinator.sh/priority-class"] = band
            asks = {"cpu": f"{pick.randrange(10, 2000)}m", "memory": str(pick.randrange(1 << 20, 2 * GIB))}
            spec: Object = {"nodeName": node, "automountServiceAccountToken": False}
            spec["containers"] = [
                {"name": "c", "image": "x", "resources": {"requests": asks if self._happens(0.8) else {}}}
            ]
            if self._happens(0.2):
                first = {"name": "i", "image": "x", "resources": {"requests": {"cpu": "3", "memory": "3Gi"}}}
                spec["initContainers"] = [first]
            zones = [{"node": zone} for zone in pick.choice([[], [], [0], [1], [0, 1], [5]])]
            annotations = {"scheduling.koordinator.sh/resource-status": json.dumps({"numaNodeResources": zones})}
            meta = {"name": f"{node}-{number}", "namespace": "default", "labels": labels, "annotations": annotations}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            made.append((pod, pick.choice(["Running", "Running", "Pending", "Succeeded"])))
        return made

    def topology(self, node: Object) -> Object:
        """Return two zones, of which the first has more memory."""
        amounts = node["status"]["capacity"]
        cpu, memory = int(amounts["cpu"][:-1]) // 2, int(amounts["memory"]) // 2
        fields = ("capacity", "allocatable", "available")
        zones = [
            {
                **{"name": f"node-{number}", "type": "Node"},
                "resources": [
                    {"name": "cpu", **dict.fromkeys(fields, f"{cpu}m")},
                    {
                        "name": "memory",
                        **dict.fromkeys(fields, str(memory - number * self._random.randrange(GIB // 4))),
                    },
                ],
            }
            for number in range(2)
        ]
        return {**topology(node["metadata"]["name"]), "topologyPolicies": ["None"], "zones": zones}

    def report(self, node: Object, pods: list[str]) -> Object:
        pick = self._random
        strategy = json.loads(node["metadata"]["annotations"]["node.koordinator.sh/colocation-strategy"])
        reports_all = "maxUsageRequest" in strategy.values()
        reported = [name for name in pods if reports_all or self._happens(0.75)]
        reported += [f"gone-{number}" for number in range(pick.randrange(3))]
        amounts = node["status"]["capacity"]
        cpu, memory = int(amounts["cpu"][:-1]), int(amounts["memory"])
        status: Object = {
            "updateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "nodeMetric": {
                "systemUsage": self._uses(3000, 4 * GIB),
                "nodeUsage": self._uses(cpu, memory) if self._happens(0.9) else {},
            },
            "podsMetric": [
                {
                    **{"name": name, "namespace": "default", "podUsage": self._uses(3000, 2 * GIB)},
                    **{"priority": pick.choice(["", *BANDS]), "qos": "LS"},
                }
                for name in reported
            ],
            "hostApplicationMetric": [
                {"name": f"a{number}", "usage": self._uses(800, GIB), "priority": pick.choice(BANDS), "qos": "LS"}
                for number in range(pick.randrange(3))
            ],
        }
        if self._happens(0.7):
            status["prodReclaimableMetric"] = {"resource": self._uses(cpu, memory)}
        return status


@pytest.fixture(scope="module")
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """One of its own: Koordinator brings its own definitions."""
    with control_plane(binaries.kubernetes) as plane:
        yield plane


@pytest.fixture
def manager(plane: ControlPlane, tmp_path: Path) -> Iterator[Koordinator]:
    with koordinator(plane, tmp_path, COLOCATION) as running:
        yield running


def metric(name: str) -> Object:
    return {"apiVersion": SLO, "kind": "NodeMetric", "metadata": {"name": name}}


def topology(name: str) -> Object:
    return {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology", "metadata": {"name": name}}


def make_nodes(plane: ControlPlane, seed: int) -> list[str]:
    """Make the nodes; a Koordinator manager runs, and makes their NodeMetrics."""
    dice, names = Dice(seed), [f"r{number}" for number in range(NODES)]
    for name in names:
        made = dice.node(name, {"resourceDiffThreshold": 1e-9, **dice.strategy()})
        plane.api.create(made)
        plane.api.create(dice.topology(made))
        pods = dice.pods(name)
        for pod, phase in pods:
            plane.api.create(pod)
            plane.api.patch(pod, {"status": {"phase": phase}}, "status")
        until(lambda name=name: plane.api.get(metric(name)), "the manager's NodeMetric")
        status = dice.report(made, [pod["metadata"]["name"] for pod, _ in pods])
        plane.api.patch(metric(name), {"status": status}, "status")
    return names


def differing(plane: ControlPlane, names: list[str]) -> dict[str, str]:
    """Return the nodes whose resources are not those that koordebpf computes, and how they differ."""
    transport = open_cluster(plane.admin_kubeconfig)
    try:
        explained = {name: explain(transport, name) for name in names}
    finally:
        transport.close()
    return {
        name: f"{each.calculations} {each.has} {each.zones} {zones_of(plane, name)}"
        for name, each in explained.items()
        if {one.resource: one.result for one in each.calculations} != dict(each.has)
        or not are_alike(zones_of(plane, name), each)
    }


def zones_of(plane: ControlPlane, name: str) -> dict[str, tuple[Decimal, Decimal]]:
    """Return zone → batch CPU and memory, as the topology has them."""
    found = {}
    for zone in plane.api.get(topology(name))["zones"]:
        amounts = {each["name"]: parse_quantity(each["allocatable"]) for each in zone["resources"]}
        both = [amounts.get(f"kubernetes.io/batch-{resource}", Decimal(-1)) for resource in ("cpu", "memory")]
        found[zone["name"]] = (both[0], both[1])
    return found


def are_alike(zones: dict[str, tuple[Decimal, Decimal]], explained: ExplainedNode) -> bool:
    """Bytes are divided to thousandths there, to whole ones here: a byte for each pod and report."""
    return zones.keys() == explained.zones.keys() and all(
        cpu == explained.zones[name].cpu_millicpu and abs(memory - explained.zones[name].memory_bytes) <= 20
        for name, (cpu, memory) in zones.items()
    )


def test_koordinators_manager_comes_to_the_same_and_its_nodes_are_taken_over_without_a_write(
    plane: ControlPlane, manager: Koordinator, tmp_path: Path
) -> None:
    manager.start_manager()
    names = make_nodes(plane, SEED)
    with suppress(TimeoutError):
        until(lambda: not differing(plane, names), "the same", timeout_s=60)
    assert differing(plane, names) == {}
    assert any(int(manager.allocatable(name)["kubernetes.io/batch-cpu"]) for name in names)

    manager.close()
    managed = {each["manager"] for each in plane.api.get(node(names[0]))["metadata"]["managedFields"]}
    assert any(each.startswith("koord") for each in managed)
    versions = {name: plane.api.get(node(name))["metadata"]["resourceVersion"] for name in names}
    with running(plane, tmp_path / "first.log") as first:
        until(lambda: f"resources of {NODES} Nodes were written by a Koordinator manager" in first.log, "the sentence")
    with running(plane, tmp_path / "second.log", "--adopt"):
        plane.api.patch(
            metric(names[0]), {"status": {"nodeMetric": {"systemUsage": {"resources": {"cpu": "1"}}}}}, "status"
        )
        until(lambda: ours(plane, names[0]), "the NodeMetric to be taken over")
        until(lambda: differing(plane, names) == {}, "the first Node to follow its report", timeout_s=60)
        moved = [name for name in names if plane.api.get(node(name))["metadata"]["resourceVersion"] != versions[name]]
    assert moved in ([names[0]], [])


def node(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def ours(plane: ControlPlane, name: str) -> bool:
    labels = plane.api.get(metric(name))["metadata"].get("labels", {})
    return labels.get("app.kubernetes.io/managed-by") == "koordebpf-controller"


def running(plane: ControlPlane, log: Path, *options: str) -> Running:
    """Start a koordebpf controller as administrator."""
    return Running(plane.admin_kubeconfig, log, "--batch-resources", *options, lease_namespace="koordinator-system")
