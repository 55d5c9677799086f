"""PodDisruptionBudgets from the API server: those of this node's namespaces, and no harm where it refuses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource, Wanted
from koordebpf.kube.sources.pdbs import PdbReflector
from tests.contract.apiserver import Cluster, Exchange, Request, gives, listing, pod, status, until
from tests.contract.sources import PACE, Open
from tests.support.patience import patience


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


def test_without_the_right_nothing_is_known_of_them_and_all_else_continues(open_source: Open, cluster: Cluster) -> None:
    forbidden = status(403, "Forbidden", 'User "agent" cannot list resource "poddisruptionbudgets"')
    cluster.pdbs.lists += [gives(403, forbidden)] * 1000
    source = open_source()
    said = until(lambda: next((p for p in source.state().problems if "poddisruptionbudgets" in p), None), "a problem")
    assert "needs RBAC verb list on poddisruptionbudgets" in said
    until(lambda: source.state().synced_at_ns and source.state().pods and source.state().node, "pods and Node")
    assert source.state().pdbs is None


def test_a_server_without_policy_v1_is_reported_as_too_old(open_source: Open, cluster: Cluster) -> None:
    cluster.pdbs.lists += [gives(404, status(404, "NotFound", "no such resource"))] * 1000
    source = open_source()
    until(lambda: source.state().synced_at_ns and source.state().nodeslo, "the rest")
    until(lambda: source.state().problems, "what is missing")
    assert source.state().pdbs is None
    (problem,) = source.state().problems
    assert "needs Kubernetes 1.22 or newer" in problem


@pytest.mark.usefixtures("cluster")
def test_none_in_the_cluster_is_not_the_same_as_unknown(open_source: Open) -> None:
    source = open_source()
    until(lambda: source.state().synced_at_ns, "pods and Node")
    until(lambda: known(source) == [], "an empty list")


ALL = "/apis/policy/v1/poddisruptionbudgets"


def of_namespace(name: str) -> str:
    return f"/apis/policy/v1/namespaces/{name}/poddisruptionbudgets"


def pod_in(namespace: str, name: str, version: int, **labels: str) -> dict[str, Any]:
    made = pod(name, version, **labels)
    made["metadata"]["namespace"] = namespace
    return made


@pytest.fixture
def more_pods(cluster: Cluster) -> Iterator[Exchange]:
    """A watch of the pods by which more of them come."""
    opened: list[Exchange] = []
    is_open = threading.Event()

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        opened.append(exchange)
        is_open.set()
        exchange.hold()

    class Late:
        def event(self, kind: str, obj: object) -> None:
            assert is_open.wait(30)
            opened[0].event(kind, obj)

    cluster.pods.watches.append(watch)
    yield Late()  # type: ignore[misc]


class TestWhatIsAskedFor:
    def asked(self, cluster: Cluster) -> set[str]:
        return {each.path for each in (*cluster.pdbs.seen_lists, *cluster.pdbs.seen_watches)}

    def test_the_one_namespace_of_this_nodes_pods_and_no_other(self, open_source: Open, cluster: Cluster) -> None:
        cluster.pdbs.items = [pdb("web", 10, "be")]
        source = open_source()
        until(lambda: known(source) == ["be/web"] and cluster.pdbs.seen_watches, "the list and the watch")
        assert self.asked(cluster) == {of_namespace("be")}

    def test_a_pod_of_another_namespace_brings_its_budgets_and_one_watch_of_all(
        self, open_source: Open, cluster: Cluster, more_pods: Exchange
    ) -> None:
        sent: list[Exchange] = []

        def watch(exchange: Exchange) -> None:
            exchange.stream()
            sent.append(exchange)
            exchange.hold()

        cluster.pdbs.items = [pdb("web", 10, "be"), pdb("db", 11, "default"), pdb("far", 12, "elsewhere")]
        cluster.pdbs.watches += [watch, watch]
        source = open_source()
        until(lambda: known(source) == ["be/web"] and sent, "the namespace that is here")
        more_pods.event("ADDED", pod_in("default", "new", 150))
        until(lambda: known(source) == ["be/web", "default/db"], "the budget of the new pod's namespace")
        until(lambda: len(sent) == 2, "a watch of all")
        assert [each.path for each in cluster.pdbs.seen_watches] == [of_namespace("be"), ALL]
        assert ALL not in {each.path for each in cluster.pdbs.seen_lists}, "no list of the whole cluster"
        # The watch continues from where the first one was; what the list had already is skipped.
        assert cluster.pdbs.seen_watches[1].query["resourceVersion"] == "100"
        for namespace, version in (("elsewhere", 300), ("default", 301), ("be", 302)):
            sent[1].event("ADDED", pdb("late", version, namespace))
        until(lambda: len(known(source) or ()) == 4, "two of three events")
        assert sorted(known(source) or ()) == ["be/late", "be/web", "default/db", "default/late"]
        assert source.state().problems == ()

    def test_nothing_for_pods_that_cannot_be_evicted(self, kubeconfig: Path, cluster: Cluster) -> None:
        cluster.pods.items = [pod_in("be", "a", 10)]
        wanted = Wanted(may_be_evicted=lambda pod: "koord" in str(pod))
        source = ApiSource(open_cluster(kubeconfig), "n1", PACE, wanted)
        source.start(lambda: None)
        try:
            until(lambda: known(source) == [] or source.state().topology or cluster.topologies.seen_watches, "the rest")
            until(lambda: source.state().synced_at_ns and source.state().nodeslo, "the first picture")
            assert self.asked(cluster) == set()
        finally:
            source.close()

    def test_410_restarts_the_lists_and_what_was_known_stays_meanwhile(
        self, open_source: Open, cluster: Cluster
    ) -> None:
        expired = gives(410, status(410, "Expired", "too old resource version"))
        forbidden = gives(500, status(500, "InternalError", "starting"))
        cluster.pdbs.items = [pdb("web", 10, "be")]
        cluster.pdbs.watches.append(expired)
        cluster.pdbs.lists += [gives(200, listing(cluster.pdbs.items, 100)), *[forbidden] * 20]
        source = open_source()
        until(lambda: len(cluster.pdbs.seen_lists) > 10, "lists that fail")
        assert known(source) == ["be/web"]
        cluster.pdbs.items, cluster.pdbs.version = [pdb("api", 400, "be")], 410
        until(lambda: known(source) == ["be/api"], "the list again")
        until(lambda: len(cluster.pdbs.seen_watches) > 1, "a watch from it")
        assert cluster.pdbs.seen_watches[-1].query["resourceVersion"] == "410"


class TestATenantThatWritesThousands:
    SELECTOR_BYTES = 96 << 10

    def large(self, number: int) -> dict[str, Any]:
        made = pdb(f"large-{number:04}", 1000 + number, "be")
        values = [f"value-{n:06}" for n in range(self.SELECTOR_BYTES // 15)]
        made["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
        return made

    def test_pages_are_small_and_what_is_kept_is_bounded_and_said(self, open_source: Open, cluster: Cluster) -> None:
        everything = [pdb("first", 1, "be"), *(self.large(n) for n in range(60)), pdb("last", 2, "be")]
        sizes: list[int] = []

        def page(exchange: Exchange) -> None:
            query = exchange.request.query
            begin = int(query.get("continue", "0"))
            end = begin + int(query["limit"])
            body = json.dumps(listing(everything[begin:end], 9000, str(end) if end < len(everything) else "")).encode()
            sizes.append(len(body))
            exchange.answer(200, body)

        cluster.pdbs.lists += [page] * 200
        source = open_source()
        until(lambda: known(source) == ["be/first", "be/last"], "the two that people wrote")
        (problem,) = source.state().problems
        assert "not all of namespace be are kept" in problem
        assert sum(sizes) < 2 * 60 * self.SELECTOR_BYTES, "hardly a page is asked for twice"
        requests: list[Request] = cluster.pdbs.seen_lists
        # The first pages are a guess; what is too large is cut off before it is here as a whole.
        assert max(sizes[1:]) < 4 << 20
        assert len(requests) < 60


def test_it_ends_while_it_gathers_namespaces_of_which_none_is_left(kubeconfig: Path) -> None:
    lists: list[bool] = []
    transport = open_cluster(kubeconfig)
    reflector = PdbReflector(transport, lists.append, PACE)
    reflector.start()
    reflector.want(frozenset())
    until(lambda: lists, "the first round")
    reflector.want(frozenset({"default"}))
    time.sleep(0.2)  # into the second in which it gathers, or not yet: both must end
    reflector.want(frozenset())
    reflector.stop()
    began = time.monotonic()
    reflector.join(patience(10))
    assert time.monotonic() - began < patience(10)
    transport.close()
