"""NodeResourceTopology from the API server: this node's annotations, and no harm where there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.kube.sources.api import ApiSource
from koordebpf.slo.pods.cpu_placement import MANAGER_POLICY_ANNOTATION, POD_ALLOCATIONS_ANNOTATION, node_cpus
from tests.contract.apiserver import Cluster, Exchange, gives, status, until
from tests.contract.sources import Open


def topology(version: int, policy: str, cpus: str = "") -> dict[str, Any]:
    allocations = [{"namespace": "default", "name": "db", "uid": "db", "cpuset": cpus, "managedByKubelet": True}]
    return {
        "metadata": {
            "name": "n1",
            "uid": "uid-topology",
            "resourceVersion": str(version),
            "annotations": {
                MANAGER_POLICY_ANNOTATION: json.dumps({"policy": policy}),
                POD_ALLOCATIONS_ANNOTATION: json.dumps(allocations if cpus else []),
            },
        },
        "topologyPolicies": ["None"],
        "zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "capacity": "8"}]}],
    }


def placed(source: ApiSource) -> tuple[bool, dict[str, tuple[int, ...]]]:
    """Return whether kubelet places containers itself, and which CPUs it bound, as the agent knows it."""
    known = ClusterView()
    known.learn(source.state())
    said = node_cpus(None, known.topology.metadata.annotations if known.topology else None)
    return said.is_static, said.pinned


def test_this_nodes_is_watched_and_a_change_is_news(open_source: Open, cluster: Cluster) -> None:
    steps: list[Exchange] = []

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        steps.append(exchange)
        exchange.hold()

    cluster.topologies.items = [topology(10, "none")]
    cluster.topologies.watches.append(watch)
    source = open_source()
    until(lambda: source.state().synced_at_ns and source.state().topology and source.state().nodeslo, "a picture")
    assert cluster.topologies.seen_lists[0].query["fieldSelector"] == "metadata.name=n1"
    assert placed(source) == (False, {})
    until(lambda: steps and cluster.pdbs.seen_watches, "the watch, and the last list, which is news too")
    version = source.state().version
    # What others keep in it changes all the time, and is no news.
    steps[0].event("MODIFIED", topology(201, "none") | {"zones": []})
    steps[0].event("MODIFIED", topology(202, "static", "2-3"))
    until(lambda: placed(source) == (True, {"db": (2, 3)}), "the CPUs that kubelet bound")
    assert source.state().version == version + 1
    steps[0].event("DELETED", topology(203, "static", "2-3"))
    until(lambda: source.state().topology is None, "none")


@pytest.mark.parametrize("answer", [404, 403])
def test_without_it_all_else_continues(open_source: Open, cluster: Cluster, answer: int) -> None:
    cluster.topologies.lists += [gives(answer, status(answer, "no", "noderesourcetopologies"))] * 1000
    source = open_source()
    until(lambda: source.state().synced_at_ns and source.state().pods and source.state().nodeslo, "the rest")
    until(lambda: len(cluster.topologies.seen_lists) > 1, "the question, again")
    assert source.state().topology is None
    problems = [each for each in source.state().problems if "noderesourcetopologies" in each]
    assert [("needs RBAC verb list" in each) for each in problems] == ([True] if answer == 403 else [])
