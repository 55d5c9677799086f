"""PodDisruptionBudgets from the API server: those of this node's namespaces, and no harm where it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from apiserver import Cluster, Exchange, gives, status, until
from sources import Open

from koordebpf.kube.api import ApiSource


def pdb(name: str, version: int, namespace: str = "default", allowed: int = 1) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"pdb-{namespace}-{name}",
            "resourceVersion": str(version),
            "generation": 2,
        },
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 2, "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 1},
    }


def known(source: ApiSource) -> list[str] | None:
    pdbs = source.state().pdbs
    return None if pdbs is None else [each.key for each in pdbs]


def namespace_of_pods(cluster: Cluster) -> str:
    return str(cluster.pods.items[0]["metadata"]["namespace"])


def test_those_of_the_namespaces_of_this_node_are_read_whole(open_source: Open, cluster: Cluster) -> None:
    here = namespace_of_pods(cluster)
    cluster.pdbs.items = [pdb("web", 10, here), pdb("far", 11, "elsewhere")]
    source = open_source()
    until(lambda: known(source) == [f"{here}/web"], "the one that is here")
    (found,) = source.state().pdbs or ()
    assert found.spec.selector == {"matchLabels": {"app": "web"}}
    assert (found.metadata.generation, found.status.observedGeneration) == (2, 2)
    assert (found.status.disruptionsAllowed, found.status.currentHealthy, found.status.desiredHealthy) == (1, 2, 1)


def test_a_change_here_is_news_and_one_elsewhere_is_none(open_source: Open, cluster: Cluster) -> None:
    here = namespace_of_pods(cluster)
    steps: list[Exchange] = []

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        steps.append(exchange)
        exchange.hold()

    cluster.pdbs.items = [pdb("web", 10, here)]
    cluster.pdbs.watches.append(watch)
    source = open_source()
    until(lambda: known(source) and source.state().synced_at_ns and source.state().nodeslo and steps, "a first picture")
    until(lambda: cluster.topologies.seen_watches, "the last list, which is news too")
    version = source.state().version
    steps[0].event("MODIFIED", pdb("far", 201, "elsewhere", allowed=0))
    steps[0].event("MODIFIED", pdb("web", 202, here, allowed=0))
    until(lambda: (source.state().pdbs or ())[0].status.disruptionsAllowed == 0, "the change here")
    assert source.state().version == version + 1


def test_without_the_right_nothing_is_known_of_them_and_all_else_goes_on(open_source: Open, cluster: Cluster) -> None:
    forbidden = status(403, "Forbidden", 'User "agent" cannot list resource "poddisruptionbudgets"')
    cluster.pdbs.lists += [gives(403, forbidden)] * 1000
    source = open_source()
    said = until(lambda: next((p for p in source.state().problems if "poddisruptionbudgets" in p), None), "a problem")
    assert "needs RBAC verb list on poddisruptionbudgets" in said
    until(lambda: source.state().synced_at_ns and source.state().pods and source.state().node, "pods and Node")
    assert source.state().pdbs is None


def test_a_server_without_them_is_no_problem(open_source: Open, cluster: Cluster) -> None:
    cluster.pdbs.lists += [gives(404, status(404, "NotFound", "no such resource"))] * 1000
    source = open_source()
    until(lambda: source.state().synced_at_ns and source.state().nodeslo, "the rest")
    until(lambda: cluster.pdbs.seen_lists, "the question")
    assert (source.state().pdbs, source.state().problems) == (None, ())


@pytest.mark.usefixtures("cluster")
def test_none_in_the_cluster_is_not_the_same_as_unknown(open_source: Open) -> None:
    source = open_source()
    until(lambda: source.state().synced_at_ns, "pods and Node")
    until(lambda: known(source) == [], "an empty list")
