"""Batch resources on a real API server: from colocation-config and a report to what a kubelet admits, and back.

The controller runs under its own ServiceAccount, with what deploy/base and components/batch-resources allow it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from koordebpf.quantity import quantity_bytes
from koordebpf.units import GIB, MIB
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.controllers import ACCOUNT, CONFIG, Run
from tests.cluster.objects import BASE, BOOTSTRAP, NAMESPACE, documents, is_served, node, pod, reasons
from tests.cluster.story import Story
from tests.contract.apiserver import until

pytestmark = pytest.mark.kubelet

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MANAGER_LEASE: Object = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "koordinator-manager", "namespace": "koordinator-system"},
}
AGENTS_RIGHTS = "instead-of-koordlet/rbac-node-metric.yaml"
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"


def node_metric(name: str) -> Object:
    return {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name}}


def colocation(**fields: Any) -> Object:
    return {"data": {"colocation-config": json.dumps({"enable": True, **fields})}}


@pytest.fixture(scope="module")
def kubeconfig(cluster: ControlPlane) -> Iterator[Path]:
    components = BASE.parent / "components"
    files = (BOOTSTRAP / "nodemetric-crd.yaml", components / "batch-resources/rbac.yaml", components / AGENTS_RIGHTS)
    made = [one for file in files for one in documents(file)]
    cluster.api.create(*made)
    until(lambda: is_served(cluster.api, "NodeMetric"), "NodeMetrics are served")
    yield cluster.service_account(NAMESPACE, ACCOUNT)
    for one in made:
        cluster.api.delete(one)
    for one in made:
        cluster.api.wait_gone(one)


@pytest.fixture
def config(cluster: ControlPlane) -> Iterator[Object]:
    if cluster.api.get({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koordinator-system"}}) is None:
        cluster.add_namespace("koordinator-system")
    yield cluster.api.create({**CONFIG, **colocation()})
    cluster.api.delete(CONFIG)


@pytest.fixture
def run(kubeconfig: Path, config: Object, tmp_path: Path) -> Iterator[Run]:
    with Run(kubeconfig, tmp_path, "--batch-resources") as started:
        yield started
    assert not [each.log for each in started.running if "403 Forbidden" in each.log]


@pytest.fixture
def name(cluster: ControlPlane) -> Iterator[str]:
    """A Node that is only an object, of 2 CPUs and 3 GiB."""
    made = cluster.api.create(node("batch-0", 3 * GIB))
    yield "batch-0"
    cluster.api.delete(made)
    cluster.api.delete(node_metric("batch-0"))
    cluster.api.delete({**node_metric("batch-0"), "kind": "NodeSLO"})


def report(cluster: ControlPlane, name: str, cpu: str, memory: str, age: timedelta = timedelta()) -> None:
    """Write the status of a Node's NodeMetric, as its agent would."""
    until(lambda: cluster.api.get(node_metric(name)), "the NodeMetric")
    at = (datetime.now(UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ")
    used = {"resources": {"cpu": cpu, "memory": memory}}
    status = {"updateTime": at, "nodeMetric": {"nodeUsage": used, "systemUsage": used}, "podsMetric": []}
    cluster.api.patch(node_metric(name), {"status": status}, "status")


def batch(cluster: ControlPlane, name: str) -> dict[str, str]:
    """Return the extended resources of a Node, of which it has the same in its capacity."""
    found = cluster.api.get(node(name))
    assert found is not None
    both = [
        {key: value for key, value in found["status"][field].items() if "/" in key}
        for field in ("capacity", "allocatable")
    ]
    assert both[0] == both[1]
    return both[0]


@pytest.mark.slow
def test_a_node_gets_them_from_its_report_and_loses_them_with_it(cluster: ControlPlane, name: str, run: Run) -> None:
    running = run()
    # 2 − 0.8 − 0.5 CPUs; 3 GiB − 35 % − 1 GiB.
    report(cluster, name, "500m", "1Gi")
    margin = int(3 * GIB * 0.35)
    wanted = {BATCH_CPU: 700, BATCH_MEMORY: 2 * GIB - margin, "kubernetes.io/mid-cpu": 0, "kubernetes.io/mid-memory": 0}
    until(lambda: batch(cluster, name), "batch resources")
    assert {key: quantity_bytes(value) for key, value in batch(cluster, name).items()} == wanted
    annotations = cluster.api.get(node(name))["metadata"]["annotations"]
    assert json.loads(annotations[ORIGIN])["resources"][BATCH_CPU] == "700"
    spec = cluster.api.get(node_metric(name))["spec"]["metricCollectPolicy"]
    assert (spec["reportIntervalSeconds"], spec["nodeAggregatePolicy"]["durations"]) == (60, ["5m", "10m", "30m"])

    third = {"allocations": [{"name": "yarn", "priority": "koord-batch", "resources": {BATCH_CPU: "200"}}]}
    change = {"node.koordinator.sh/thirdPartyAllocations": json.dumps(third)}
    cluster.api.patch(node(name), {"metadata": {"annotations": change}})
    until(lambda: batch(cluster, name)[BATCH_CPU] == "500", "what a third party has allocated")

    report(cluster, name, "500m", "1Gi", timedelta(minutes=20))
    until(lambda: batch(cluster, name) == {}, "the reset")
    assert ORIGIN not in cluster.api.get(node(name))["metadata"]["annotations"]
    report(cluster, name, "500m", "1Gi")
    until(lambda: batch(cluster, name), "batch resources again")
    cluster.api.patch(CONFIG, colocation(enable=False))
    until(lambda: batch(cluster, name) == {} and cluster.api.get(node_metric(name)) is None, "colocation is off")
    assert running.popen.poll() is None


@pytest.mark.slow
def test_they_are_left_to_a_koordinator_manager_that_runs(cluster: ControlPlane, name: str, run: Run) -> None:
    spec = {"holderIdentity": "koord-manager-0", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    cluster.api.create({**MANAGER_LEASE, "spec": spec})
    try:
        cluster.api.create({**node_metric(name), "spec": {}})
        running = run()
        report(cluster, name, "500m", "1Gi")
        until(lambda: "a Koordinator manager runs (koord-manager-0" in running.log, "the sentence")
        assert batch(cluster, name) == {}
        # It renews no more.
        until(lambda: batch(cluster, name), "batch resources", timeout_s=60)
    finally:
        cluster.api.delete(MANAGER_LEASE)


@pytest.mark.slow
def test_what_it_writes_is_explained(cluster: ControlPlane, name: str, run: Run) -> None:
    run()
    report(cluster, name, "500m", "1Gi")
    until(lambda: batch(cluster, name), "batch resources")
    options = ["--kubeconfig", str(cluster.admin_kubeconfig), "--json"]
    command = [sys.executable, "-m", "koordebpf", "explain", "node", name, "batch-cpu", *options]
    said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    (calculation,) = said["calculations"]
    assert calculation["result"] == 700 == said["has"][BATCH_CPU]
    assert [term["value"] for term in calculation["terms"]] == [2000, -800, -500, 0]


@pytest.mark.slow
def test_a_kubelet_admits_batch_pods_by_them_and_they_are_evicted_when_nothing_is_left(story: Story, run: Run) -> None:
    cluster, name = story.cluster, story.node.name
    asks = {BATCH_MEMORY: str(256 * MIB)}
    run("--adopt")
    early = story.api.create(pod("early", name, namespace=story.namespace, requests=asks, limits=asks))
    story.until(lambda: story.api.get(early)["status"].get("phase") == "Failed", "the kubelet to refuse")
    assert "batch-memory" in json.dumps(story.api.get(early)["status"])

    report(cluster, name, "100m", "100Mi")
    story.until(lambda: BATCH_MEMORY in batch(cluster, name), "batch resources")
    enabled = {"koordinator.sh/eviction-enabled": "true"}
    story.hold("batch", 50, labels=enabled, requests=asks, limits=asks)
    story.hold("web", 50, qos="LS", priority="koord-prod", labels=enabled)
    agent = story.agent("--feature-gates", "MemoryAllocatableEvict=true")
    # The controller writes this node's NodeSLO: the threshold is the ConfigMap's.
    strategy = {"memoryAllocatableEvictThresholdPercent": 110, "memoryAllocatableEvictLowerPercent": 100}
    threshold = {"resource-threshold-config": json.dumps({"clusterStrategy": {"enable": True, **strategy}})}
    story.api.patch(CONFIG, {"data": threshold})
    time.sleep(2)
    story.still_run("batch", "web")
    report(cluster, name, "100m", "3Gi")
    story.until(lambda: batch(cluster, name).get(BATCH_MEMORY) == "0", "batch memory to be used up")
    line = story.evicted("batch")
    story.is_gone("batch")
    story.still_run("web")
    (feature,) = [each for each in line["features"] if each["victims"]]
    assert feature["verdict"]["feature"] == "MemoryAllocatableEvict"
    assert reasons(story.events("batch")) == [("batch", "evictPodSuccess")]
    assert agent.stop() == 0
    story.api.patch(CONFIG, colocation(enable=False))
    story.until(lambda: batch(cluster, name) == {}, "the reset")


@pytest.mark.slow
def test_from_the_agents_own_report_to_an_eviction_with_nothing_written_by_hand_but_the_configmap_and_pods(
    story: Story, run: Run
) -> None:
    cluster, name = story.cluster, story.node.name
    strategy = {"memoryAllocatableEvictThresholdPercent": 110, "memoryAllocatableEvictLowerPercent": 100}
    strategy |= {"memoryEvictThresholdPercent": 97, "memoryEvictLowerPercent": 96}  # not by use
    threshold = {"resource-threshold-config": json.dumps({"clusterStrategy": {"enable": True, **strategy}})}
    config = colocation(
        metricReportIntervalSeconds=30, metricAggregateDurationSeconds=60, memoryReclaimThresholdPercent=80
    )
    story.api.patch(CONFIG, {"data": config["data"] | threshold})
    run("--adopt")
    story.until(lambda: cluster.api.get(node_metric(name)), "the NodeMetric")
    agent = story.agent("--feature-gates", "MemoryAllocatableEvict=true,NodeMetricReport=true")
    story.until(lambda: BATCH_MEMORY in batch(cluster, name), "the first report", timeout_s=120)
    whole = story.node.memory_bytes
    free = quantity_bytes(batch(cluster, name)[BATCH_MEMORY])
    assert 0.3 * whole < free <= 0.8 * whole

    asks = {BATCH_MEMORY: str(256 * MIB)}
    enabled = {"koordinator.sh/eviction-enabled": "true"}
    story.hold("batch", 50, labels=enabled, requests=asks, limits=asks)
    # A prod pod comes, and uses what batch pods were promised.
    story.hold("web", round(0.8 * whole) // MIB, qos="LS", priority="koord-prod", requests={"memory": "1500Mi"})
    story.until(lambda: batch(cluster, name).get(BATCH_MEMORY) == "0", "batch memory to be used up", timeout_s=180)
    line = story.evicted("batch")
    story.is_gone("batch")
    story.still_run("web")
    (feature,) = [each for each in line["features"] if each["victims"]]
    assert feature["verdict"]["feature"] == "MemoryAllocatableEvict"
    assert agent.stop() == 0
    story.api.patch(CONFIG, colocation(enable=False))
    story.until(lambda: batch(cluster, name) == {}, "the reset")
