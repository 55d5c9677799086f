"""ApiSource against a real API server, under the agent's own ServiceAccount."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from koordebpf.kube.cache.objects import ClusterState
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.config_map import CONFIG_MAP
from koordebpf.kube.http.transport import open_cluster, open_in_cluster
from koordebpf.kube.sources.api import ApiSource
from tests.cluster.accounts import account_that_lacks, refused_at, refused_requests
from tests.cluster.api import Object, Refused
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import BOOTSTRAP, documents, nodeslo, pod
from tests.contract.apiserver import let_it_spin, until

Opens = Callable[[Path], ApiSource]

PACE = Pace(first_s=0.1, cap_s=1.0)


@pytest.fixture
def opened(node_name: str) -> Iterator[Opens]:
    sources: list[ApiSource] = []

    def open_source(kubeconfig: Path) -> ApiSource:
        sources.append(ApiSource(open_cluster(kubeconfig), node_name, PACE))
        sources[-1].start(lambda: None)
        return sources[-1]

    yield open_source
    for source in sources:
        source.close()


def names(state: ClusterState) -> set[str]:
    return {pod.metadata.name for pod in state.pods}


def becomes(source: ApiSource, condition: Callable[[ClusterState], Any], what: str) -> ClusterState:
    try:
        until(lambda: condition(source.state()), what)
    except TimeoutError:
        raise AssertionError(f"{what}: {source.state()}") from None
    return source.state()


def percent(state: ClusterState) -> object:
    if state.nodeslo is None:
        return None
    return json.loads(bytes(state.nodeslo))["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"]


def test_it_knows_this_nodes_pods_and_no_others(cluster, agent_kubeconfig, opened, node_name, namespace):
    cluster.api.create(pod("here", node_name, namespace=namespace), pod("there", "another", namespace=namespace))
    cluster.api.create(nodeslo(node_name, memoryEvictThresholdPercent=70))
    source = opened(agent_kubeconfig)
    state = becomes(source, lambda state: state.synced_at_ns and names(state) and state.nodeslo, "first sight")
    assert names(state) == {"here"}
    assert state.node is not None
    assert state.node.metadata.name == node_name
    assert state.problems == ()
    assert state.pods[0].spec.priority == 5000  # from its PriorityClass
    cluster.api.create(pod("second", node_name, namespace=namespace))
    becomes(source, lambda state: names(state) == {"here", "second"}, "a new pod")
    cluster.api.delete(pod("here", node_name, namespace=namespace), gracePeriodSeconds=0)
    becomes(source, lambda state: names(state) == {"second"}, "a pod that is gone")


def test_a_pod_finds_the_server_by_its_environment_and_its_account(agent_kubeconfig, node_name, tmp_path, monkeypatch):
    config = json.loads(agent_kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    (tmp_path / "token").write_text(user["token"])
    (tmp_path / "ca.crt").write_bytes(Path(server["certificate-authority"]).read_bytes())
    address = urlsplit(server["server"])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", address.hostname)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    source = ApiSource(open_in_cluster(tmp_path), node_name)
    source.start(lambda: None)
    try:
        state = becomes(source, lambda state: state.synced_at_ns and state.node, "first sight")
        assert state.problems == ()
    finally:
        source.close()


def test_a_nodeslo_is_created_updated_deleted_and_refused_when_it_is_invalid(
    cluster, agent_kubeconfig, opened, node_name
):
    source = opened(agent_kubeconfig)
    becomes(source, lambda state: state.synced_at_ns, "first sight")
    assert source.state().nodeslo is None
    slo = nodeslo(node_name, memoryEvictThresholdPercent=70)
    cluster.api.create(slo)
    becomes(source, lambda state: percent(state) == 70, "a NodeSLO")
    change = {"spec": {"resourceUsedThresholdWithBE": {"memoryEvictThresholdPercent": 60}}}
    cluster.api.patch(slo, change)
    becomes(source, lambda state: percent(state) == 60, "its change")
    for wrong, rule in [("sixty", "must be of type integer"), (60.5, "must be of type integer")]:
        change["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"] = wrong
        with pytest.raises(Refused, match=f"memoryEvictThresholdPercent.*{rule}") as refused:
            cluster.api.patch(slo, change)
        assert refused.value.status == 422
    let_it_spin()
    assert percent(source.state()) == 60
    cluster.api.delete(slo)
    becomes(source, lambda state: state.nodeslo is None, "its end")


def test_what_a_newer_koordinator_adds_to_a_nodeslo_is_kept(cluster, node_name):
    slo = nodeslo(node_name, memoryEvictThresholdPercent=70)
    slo["spec"] |= {"extensions": {"anything": {"deep": [1, "two"]}}, "strategyOfTomorrow": {"enable": True}}
    made = cluster.api.create(slo)
    assert made["spec"] == slo["spec"]


@pytest.mark.slow
def test_a_verb_that_is_missing_is_named_and_asked_for_less_and_less(cluster, opened, namespace):
    source = opened(account_that_lacks(cluster, namespace, "nodeslos"))
    state = becomes(source, lambda state: state.problems and state.synced_at_ns, "the problem")
    (problem,) = state.problems
    assert problem.startswith("list nodeslos: 403 Forbidden: ")
    assert "needs RBAC verb list on nodeslos" in problem
    assert f"system:serviceaccount:{namespace}:lacks-nodeslos" in problem
    # Pods and Node are known all the same, and stay known.
    assert state.node is not None
    until(lambda: refused_requests(cluster, namespace, "nodeslos") >= 6, "the sixth denial")
    for nth, (denied, again) in enumerate(pairwise(refused_at(cluster, namespace, "nodeslos"))):
        assert (again - denied).total_seconds() >= PACE.first_s / 2 * 2**nth, nth


@pytest.mark.slow
def test_after_a_restart_that_forgot_the_past_it_lists_again(cluster, agent_kubeconfig, opened, node_name, namespace):
    stays, leaves = (pod(name, node_name, namespace=namespace) for name in ("stays", "leaves"))
    cluster.api.create(stays, leaves)
    source = opened(agent_kubeconfig)
    becomes(source, lambda state: names(state) == {"stays", "leaves"}, "first sight")
    version = cluster.api.call("GET", "/api/v1/pods")["metadata"]["resourceVersion"]
    cluster.api.patch(stays, {"metadata": {"labels": {"a": "b"}}})
    cluster.stop_api_server()
    # A deletion during the outage has no watch event: only a list shows it.
    cluster.forget(f"/registry/pods/{namespace}/leaves")
    becomes(source, lambda state: any("no connection" in problem for problem in state.problems), "the server is away")
    assert names(source.state()) == {"stays", "leaves"}
    cluster.start_api_server()
    state = becomes(source, lambda state: names(state) == {"stays"} and not state.problems, "a new list")
    assert (state.pods[0].metadata.labels or {})["a"] == "b"
    answer = cluster.api.call("GET", f"/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion={version}")
    assert (answer["type"], answer["object"]["code"]) == ("ERROR", 410)


@pytest.fixture
def without_nodeslo(cluster: ControlPlane) -> Iterator[None]:
    (crd,) = documents(BOOTSTRAP / "nodeslo-crd.yaml")
    cluster.api.delete(crd)
    cluster.api.wait_gone(crd)
    until(lambda: not is_served(cluster), "NodeSLO is served no more")
    yield
    cluster.api.create(crd)
    until(lambda: is_served(cluster), "NodeSLO is served")


def is_served(cluster: ControlPlane) -> bool:
    try:
        cluster.api.call("GET", "/apis/slo.koordinator.sh/v1alpha1/nodeslos")
    except Refused as refused:
        # While it comes: 429, its storage is being made.
        assert refused.status in {404, 429}
        return False
    return True


@pytest.mark.usefixtures("without_nodeslo")
def test_where_nodeslo_is_not_served_the_configmap_is_read_and_its_edits_followed(cluster, agent_kubeconfig, opened):
    metadata = {"name": CONFIG_MAP.name, "namespace": CONFIG_MAP.namespace}
    config: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}
    try:
        cluster.api.create(config)
        source = opened(agent_kubeconfig)
        becomes(source, lambda state: state.slo_controller_config == {"a": "1"}, "the ConfigMap")
        assert source.state().problems == ()
        cluster.api.patch(config, {"data": {"a": "2"}})
        becomes(source, lambda state: state.slo_controller_config == {"a": "2"}, "its edit")
        cluster.api.delete(config)
        becomes(source, lambda state: state.slo_controller_config is None, "its end")
    finally:
        cluster.api.delete(config)
