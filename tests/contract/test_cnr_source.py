"""CustomNodeResource from the API server: only where it is wanted, and no harm where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.kube.sources.api import ApiSource
from koordebpf.state.cnr import Cnr
from koordebpf.state.pods.requests import RECLAIMED_CPU
from tests.contract.apiserver import Cluster, Exchange, gives, status, until
from tests.contract.sources import Open


def cnr(version: int, cpu: object, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "uid": "uid-cnr", "resourceVersion": str(version)},
        "status": {"resources": {"allocatable": {RECLAIMED_CPU: cpu}}, "topologyPolicy": "none", **more},
    }


def given(source: ApiSource, known: ClusterView) -> Cnr | None:
    known.learn(source.state())
    return known.cnr


def test_this_nodes_is_watched_and_a_change_of_what_is_judged_is_news(open_source: Open, cluster: Cluster) -> None:
    steps: list[Exchange] = []

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        steps.append(exchange)
        exchange.hold()

    cluster.cnrs.items = [cnr(10, "8k")]
    cluster.cnrs.watches.append(watch)
    source, known = open_source(with_cnr=True), ClusterView()
    until(lambda: source.state().synced_at_ns and source.state().cnr and source.state().nodeslo, "a picture")
    assert cluster.cnrs.seen_lists[0].query["fieldSelector"] == "metadata.name=n1"
    assert given(source, known) == Cnr({RECLAIMED_CPU: 8000})
    until(lambda: steps and cluster.pdbs.seen_watches and cluster.topologies.seen_watches, "the last list, news too")
    version = source.state().version
    # Heartbeats and metrics come every few seconds, and are no news.
    steps[0].event("MODIFIED", cnr(201, "8k", conditions=[{"type": "AgentReady", "status": "True"}]))
    steps[0].event("MODIFIED", cnr(202, "9k"))
    until(lambda: given(source, known) == Cnr({RECLAIMED_CPU: 9000}), "the change")
    assert source.state().version == version + 1
    steps[0].event("MODIFIED", cnr(203, {"no": "quantity"}))
    until(lambda: source.state().problems, "what is wrong")
    assert given(source, known) == Cnr({RECLAIMED_CPU: 9000})
    steps[0].event("MODIFIED", cnr(204, "-1"))
    until(lambda: given(source, known) is None, "that it is not judged")
    assert any("must not be negative" in each for each in known.problems)
    steps[0].event("DELETED", cnr(205, "-1"))
    until(lambda: source.state().cnr is None, "none")
    assert given(source, known) is None
    assert not known.problems_by_reason["CustomNodeResource"]


def test_without_katalyst_it_is_not_asked_for(open_source: Open, cluster: Cluster) -> None:
    cluster.cnrs.items = [cnr(10, "8k")]
    source = open_source()
    until(lambda: source.state().synced_at_ns and cluster.topologies.seen_watches, "a picture")
    assert cluster.cnrs.seen_lists == []
    assert source.state().cnr is None


@pytest.mark.parametrize("answer", [404, 403])
def test_without_it_all_else_continues(open_source: Open, cluster: Cluster, answer: int) -> None:
    cluster.cnrs.lists += [gives(answer, status(answer, "no", "customnoderesources"))] * 1000
    source = open_source(with_cnr=True)
    until(lambda: source.state().synced_at_ns and source.state().pods and source.state().nodeslo, "the rest")
    until(lambda: len(cluster.cnrs.seen_lists) > 1, "the question, again")
    assert source.state().cnr is None
    problems = [each for each in source.state().problems if "customnoderesources" in each]
    assert [("needs RBAC verb list" in each) for each in problems] == ([True] if answer == 403 else [])


def test_what_was_readable_and_is_denied_now_is_not_known(open_source: Open, cluster: Cluster) -> None:

    cluster.cnrs.items = [cnr(10, "8k")]
    cluster.cnrs.watches += [gives(403, status(403, "no", "customnoderesources"))] * 1000
    source = open_source(with_cnr=True)
    until(lambda: any("customnoderesources" in each for each in source.state().problems), "the refusal")
    assert source.state().cnr is None
    assert source.state().pods
