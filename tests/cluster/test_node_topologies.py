"""The NodeResourceTopology on a real API server, with the rights that deploy/components/instead-of-koordlet gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordebpf.jobs.node_topology.publish import Noted, TopologyReporter
from koordebpf.jobs.node_topology.report import BASIC_INFO_ANNOTATION
from koordebpf.jobs.node_topology.run import NodeInfoReader, NodeSources
from koordebpf.kube.cache.objects import Node
from koordebpf.kube.colocation.node_topologies import TOPOLOGIES_PATH, NodeTopologies, written_at
from koordebpf.kube.http.transport import open_cluster
from koordebpf.slo.pods.cpu_placement import RESERVATION_ANNOTATION
from koordebpf.slo.pods.resource_status import SHARED_POOLS_ANNOTATION
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import RealNode
from tests.cluster.objects import BASE, NAMESPACE, applied, node
from tests.cluster.story import Story
from tests.cluster.topologies import defined, topology_of
from tests.contract.apiserver import let_it_spin, until

pytestmark = pytest.mark.kubelet

RIGHTS = BASE.parent / "components/instead-of-koordlet/rbac-topology.yaml"
BATCH = {"name": "kubernetes.io/batch-cpu", "capacity": "1k", "allocatable": "1k", "available": "1k"}
# In the node's network and with a token of the agent's.
ASK = """
import sys, pathlib, msgspec
from koordebpf.errors import KubeError
from koordebpf.kube.clients.kubelet import kubelet_config
from koordebpf.kube.http.transport import open_kubelet
kubelet = open_kubelet("https://127.0.0.1:10250", pathlib.Path(sys.argv[1]), None, insecure=True)
try:
    print(msgspec.json.encode(kubelet_config(kubelet, timeout_s=20.0)).decode())
except KubeError as error:
    print(error)
kubelet.close()
"""


@pytest.fixture(scope="module")
def served(cluster: ControlPlane) -> Iterator[None]:
    with defined(cluster):
        yield


@pytest.fixture
def rights(cluster: ControlPlane) -> Iterator[None]:
    with applied(cluster.api, RIGHTS):
        yield


@pytest.fixture
def one(served: None, cluster: ControlPlane, namespace: str) -> Iterator[Object]:
    made = cluster.api.create(node(f"{namespace}-node"))
    yield made
    cluster.api.delete(topology_of(made["metadata"]["name"]))
    cluster.api.delete(made)


@pytest.fixture
def reporter(one: Object, rights: None, agent_kubeconfig: Path) -> Iterator[TopologyReporter]:
    sources = NodeSources(NodeInfoReader(), None)
    topologies = NodeTopologies(open_cluster(agent_kubeconfig), one["metadata"]["name"])
    made = TopologyReporter(sources, topologies, apart_s=0.001)
    yield made
    made.close()


def noted(cluster: ControlPlane, one: Object) -> Noted:
    found: Any = cluster.api.get(one)
    return Noted(msgspec.convert(found, Node, strict=False))


def kept(cluster: ControlPlane, one: Object) -> Any:
    return cluster.api.get(topology_of(one["metadata"]["name"]))


def version(cluster: ControlPlane, one: Object) -> str:
    return str(kept(cluster, one)["metadata"]["resourceVersion"])


def test_it_is_made_and_kept_beside_what_others_write(
    cluster: ControlPlane, one: Object, reporter: TopologyReporter
) -> None:
    reporter.set_input(noted(cluster, one))
    made = until(lambda: kept(cluster, one), "the object")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", one["metadata"]["uid"])
    assert {each["type"] for each in made["zones"]} == {"Node"}
    assert json.loads(made["metadata"]["annotations"][BASIC_INFO_ANNOTATION])["cpuModel"]
    assert written_at(made, "koordebpf") is not None
    # As Koordinator's manager adds batch resources to zones.
    zones = [{**each, "resources": [*each["resources"], BATCH]} for each in made["zones"]]
    cluster.api.patch(topology_of(one["metadata"]["name"]), {"zones": zones, "metadata": {"labels": {"team": "a"}}})
    cluster.api.patch(one, {"metadata": {"annotations": {RESERVATION_ANNOTATION: '{"reservedCPUs": "0"}'}}})
    reporter.set_input(noted(cluster, one))
    until(lambda: reporter.writes == 2, "the second write")
    now = until(
        lambda: (found := kept(cluster, one))["metadata"]["annotations"][RESERVATION_ANNOTATION] != "{}" and found,
        "the reservation",
    )
    assert all(BATCH in each["resources"] for each in now["zones"])
    assert now["metadata"]["labels"]["team"] == "a"
    pools = json.loads(now["metadata"]["annotations"][SHARED_POOLS_ANNOTATION]) or []
    assert all(not each["cpuset"].startswith("0") for each in pools)
    before = version(cluster, one)
    reporter.set_input(noted(cluster, one))
    let_it_spin()
    assert (reporter.writes, version(cluster, one)) == (2, before)


def test_one_that_koordlet_writes_is_left_alone(
    cluster: ControlPlane, one: Object, reporter: TopologyReporter, caplog: pytest.LogCaptureFixture
) -> None:
    koordlet = open_cluster(cluster.admin_kubeconfig)
    name = one["metadata"]["name"]
    body = msgspec.json.encode({**topology_of(name), "topologyPolicies": ["None"], "zones": []})
    koordlet.post(f"{TOPOLOGIES_PATH}?fieldManager=koordlet", body, resource="noderesourcetopologies", timeout_s=20.0)
    koordlet.close()
    made = kept(cluster, one)
    at = written_at(made, "koordlet")
    assert at is not None
    assert abs((datetime.now(UTC) - at).total_seconds()) < 60
    reporter.set_input(noted(cluster, one))
    until(lambda: "koordlet wrote the NodeResourceTopology" in caplog.text, "the sentence")
    let_it_spin()
    assert (reporter.writes, version(cluster, one)) == (0, made["metadata"]["resourceVersion"])


def test_without_the_component_it_says_which_right_is_missing(
    cluster: ControlPlane, one: Object, agent_kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = NodeSources(NodeInfoReader(), None)
    made = TopologyReporter(sources, NodeTopologies(open_cluster(agent_kubeconfig), one["metadata"]["name"]))
    made.set_input(noted(cluster, one))
    try:
        until(lambda: "allow get on noderesourcetopologies" in caplog.text, "the sentence")
    finally:
        made.close()
    assert kept(cluster, one) is None


@pytest.mark.slow
def test_an_agent_on_a_real_node_reports_it(served: None, rights: None, story: Story, cluster: ControlPlane) -> None:
    one = cluster.api.get(story.node.object)
    assert one is not None
    story.agent("--feature-gates", "NodeTopologyReport=true")
    try:
        made = story.until(lambda: kept(cluster, one), "the object")
        assert made["metadata"]["ownerReferences"][0]["uid"] == one["metadata"]["uid"]
        cpus = sum(
            int(resource["capacity"])
            for zone in made["zones"]
            for resource in zone["resources"]
            if resource["name"] == "cpu"
        )
        assert str(cpus) == one["status"]["capacity"]["cpu"]
        pools = json.loads(made["metadata"]["annotations"][SHARED_POOLS_ANNOTATION])
        assert {each["node"] for each in pools} == {int(each["name"].partition("-")[2]) for each in made["zones"]}
    finally:
        cluster.api.delete(topology_of(story.node.name))


@pytest.mark.slow
def test_kubelets_configuration_takes_the_right_to_its_configz_alone(
    cluster: ControlPlane, real_node: RealNode, rights: None, agent_kubeconfig: Path, tmp_path: Path
) -> None:
    kubeconfig = yaml.safe_load(agent_kubeconfig.read_text())
    token = tmp_path / "token"
    token.write_text(kubeconfig["users"][0]["user"]["token"])
    command = ["nsenter", "-n", "-t", str(real_node.first_pid), sys.executable, "-c", ASK, str(token)]

    def asked() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    said = until(lambda: (text := asked()).startswith("{") and text, asked)
    assert json.loads(said)["cpuManagerPolicy"] == "none"
    assert json.loads(said)["topologyManagerScope"] == "container"


@pytest.mark.slow
def test_without_that_right_kubelet_refuses(cluster: ControlPlane, real_node: RealNode, tmp_path: Path) -> None:
    # Of another account: kubelet remembers for 5 minutes whom the API server allowed what.
    kubeconfig = cluster.service_account(NAMESPACE, "koordebpf-controller")
    token = tmp_path / "token"
    token.write_text(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])
    command = ["nsenter", "-n", "-t", str(real_node.first_pid), sys.executable, "-c", ASK, str(token)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "needs RBAC verb get on nodes/configz" in said
