"""`koordebpf controller` under its own ServiceAccount, with what deploy/ allows it and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object, Refused
from tests.cluster.control_plane import ControlPlane
from tests.cluster.controllers import ACCOUNT, CONFIG, Run
from tests.cluster.objects import NAMESPACE, node
from tests.contract.apiserver import until

LEASE: Object = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "koordebpf-controller", "namespace": NAMESPACE},
}


def nodeslo(name: str) -> Object:
    return {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": name}}


def text(percent: int) -> str:
    return json.dumps({"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": percent}})


@pytest.fixture(scope="module")
def kubeconfig(cluster: ControlPlane) -> Path:
    return cluster.service_account(NAMESPACE, ACCOUNT)


@pytest.fixture
def run(kubeconfig: Path, tmp_path: Path) -> Iterator[Run]:
    with Run(kubeconfig, tmp_path) as started:
        yield started


@pytest.fixture
def nodes(cluster: ControlPlane) -> Iterator[list[Object]]:
    """Two Nodes that are only objects, and a ConfigMap; afterwards neither is there."""
    made = [cluster.api.create(node(f"slo-{number}")) for number in range(2)]
    if cluster.api.get({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koordinator-system"}}) is None:
        cluster.add_namespace("koordinator-system")
    cluster.api.create({**CONFIG, "data": {"resource-threshold-config": text(70)}})
    yield made
    cluster.api.delete(CONFIG)
    for each in made:
        cluster.api.delete(each)
        cluster.api.delete(nodeslo(each["metadata"]["name"]))


def threshold(cluster: ControlPlane, name: str) -> Any:
    found = cluster.api.get(nodeslo(name))
    return found and found["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"]


def edit(cluster: ControlPlane, value: str) -> None:
    cluster.api.patch(CONFIG, {"data": {"resource-threshold-config": value}})


@pytest.mark.slow
def test_nodes_get_nodeslos_that_follow_the_configmap_and_go_with_their_node(
    cluster: ControlPlane, nodes: list[Object], run: Run
) -> None:
    running = run()
    until(lambda: threshold(cluster, "slo-0") == threshold(cluster, "slo-1") == 70, "NodeSLOs")
    edit(cluster, text(60))
    until(lambda: threshold(cluster, "slo-0") == threshold(cluster, "slo-1") == 60, "the edit")
    version = cluster.api.get(nodeslo("slo-0"))["metadata"]["resourceVersion"]

    edit(cluster, text(600))
    events = until(lambda: cluster.api.items("v1", "Event", "koordinator-system"), "the Event")
    assert [(event["reason"], event["involvedObject"]["kind"]) for event in events] == [("SLOCfgInvalid", "ConfigMap")]
    assert cluster.api.get(nodeslo("slo-0"))["metadata"]["resourceVersion"] == version

    cluster.api.delete(nodes[1])
    until(lambda: cluster.api.get(nodeslo("slo-1")) is None, "the garbage collector", timeout_s=60)
    running.close()
    assert cluster.api.get(LEASE)["spec"].get("holderIdentity", "") == ""
    assert "403 Forbidden" not in running.log
    assert "released the lease" in running.log


@pytest.mark.slow  # two controllers start, one after the other
def test_the_next_one_writes_nothing(cluster: ControlPlane, nodes: list[Object], run: Run) -> None:
    first = run()
    until(lambda: threshold(cluster, "slo-0") == threshold(cluster, "slo-1") == 70, "NodeSLOs")
    before = {name: cluster.api.get(nodeslo(name))["metadata"]["resourceVersion"] for name in ("slo-0", "slo-1")}
    first.close()
    second = run()
    until(lambda: " leads" in second.log, "the second leads")
    # A third shows that it has looked at all.
    cluster.api.create(node("slo-2"))
    until(lambda: threshold(cluster, "slo-2") == 70, "the third NodeSLO")
    cluster.api.delete(node("slo-2"))
    after = {name: cluster.api.get(nodeslo(name))["metadata"]["resourceVersion"] for name in ("slo-0", "slo-1")}
    assert after == before


@pytest.mark.slow  # two controllers
def test_those_of_koordinators_manager_are_left_alone_until_they_are_adopted(
    cluster: ControlPlane, nodes: list[Object], run: Run
) -> None:
    spec = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 85}, "extensions": {"x": {}}}
    cluster.api.create({**nodeslo("slo-0"), "spec": spec})
    first = run()
    until(lambda: "made by another" in first.log, "the complaint")
    assert threshold(cluster, "slo-0") == 85
    assert threshold(cluster, "slo-1") is None
    first.close()
    run("--adopt")
    until(lambda: threshold(cluster, "slo-0") == threshold(cluster, "slo-1") == 70, "the adoption")


@pytest.mark.slow
def test_a_controller_that_is_killed_is_followed_by_another(
    cluster: ControlPlane, nodes: list[Object], run: Run
) -> None:
    first = run()
    until(lambda: threshold(cluster, "slo-0") == 70, "the first")
    second = run()
    until(lambda: "stands for election" in second.log, "the second")
    first.popen.kill()
    edit(cluster, text(55))
    until(lambda: threshold(cluster, "slo-0") == 55, "the second's write", timeout_s=60)
    assert cluster.api.get(LEASE)["spec"]["leaseTransitions"] >= 1


class TestManifests:
    """What the server takes as a NodeSLO, and what it refuses."""

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            ({"resourceUsedThresholdWithBE": {"enable": "yes"}}, "must be of type boolean"),
            ({"cpuBurstStrategy": {"policy": "sometimes"}}, "Unsupported value"),
            ({"hostApplications": {}}, "must be of type array"),
        ],
    )
    def test_a_nodeslo_that_cannot_be_read_is_refused(self, cluster: ControlPlane, spec: Object, says: str) -> None:
        with pytest.raises(Refused, match=says) as refused:
            cluster.api.create({**nodeslo("odd"), "spec": spec})
        assert refused.value.status == 422

    def test_fields_of_a_newer_koordinator_are_kept(self, cluster: ControlPlane) -> None:
        spec = {"whatIsThis": {"a": [1]}, "extensions": {"b": {"c": 1}}}
        made = cluster.api.create({**nodeslo("newer"), "spec": spec})
        cluster.api.delete(made)
        assert made["spec"] == spec
