"""Labels of namespaces from the API server: only where a setting needs them, only these, and safe without them."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.kube.sources.api import ApiSource
from koordebpf.kube.sources.namespaces import MAX_NAMESPACES
from koordebpf.units import NS_PER_S
from tests.contract.apiserver import Cluster, Exchange, gives, let_it_spin, listing, status, until
from tests.contract.sources import PACE, Open

TIER = frozenset({"tier"})


def namespace(name: str, version: int, **labels: str) -> dict[str, Any]:
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta | {"annotations": {"note": "x" * 2000}}}


def labels_of(source: ApiSource) -> dict[str, dict[str, str] | None] | None:
    found = source.state().namespaces
    return None if found is None else {each.metadata.name: each.metadata.labels for each in found}


def test_they_are_not_read_unless_asked_for(open_source: Open, cluster: Cluster) -> None:
    cluster.namespaces.items = [namespace("be", 10, tier="gold")]
    source = open_source()
    until(lambda: source.state().synced_at_ns and source.state().nodeslo, "a picture")
    let_it_spin()
    assert [each.path for each in cluster.server.requests if each.path == "/api/v1/namespaces"] == []
    assert source.state().namespaces is None


def test_of_this_nodes_namespaces_the_labels_asked_for_are_known_and_follow(
    open_source: Open, cluster: Cluster
) -> None:
    steps: list[Exchange] = []

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        steps.append(exchange)
        exchange.hold()

    cluster.namespaces.items = [namespace("be", 10, tier="gold", owner="me"), namespace("other", 11, tier="gold")]
    cluster.namespaces.watches.append(watch)
    source = open_source(namespace_labels=TIER)
    until(lambda: labels_of(source) == {"be": {"tier": "gold"}} and steps, "the labels")
    until(lambda: source.state().synced_at_ns and source.state().nodeslo, "the rest")
    until(lambda: cluster.pdbs.seen_watches and cluster.topologies.seen_watches, "what came beside it")
    until(lambda: source.state().namespaces_since_ns is None, "a watch that is open")
    version = source.state().version
    # What is not asked for, or not of this node's pods, is no news.
    steps[0].event("MODIFIED", namespace("be", 201, tier="gold", owner="you"))
    steps[0].event("MODIFIED", namespace("other", 202))
    steps[0].event("MODIFIED", namespace("be", 203, tier="lead"))
    until(lambda: labels_of(source) == {"be": {"tier": "lead"}}, "the change")
    assert source.state().version == version + 1
    steps[0].event("MODIFIED", namespace("be", 204))
    until(lambda: labels_of(source) == {"be": None}, "no label")
    steps[0].event("DELETED", namespace("be", 205))
    until(lambda: labels_of(source) == {}, "nothing known")


@pytest.mark.parametrize("answer", [403, 500])
def test_without_them_all_else_continues_and_every_exemption_counts(
    open_source: Open, cluster: Cluster, answer: int
) -> None:
    cluster.namespaces.lists += [gives(answer, status(answer, "no", "namespaces"))] * 1000
    source = open_source(namespace_labels=TIER)
    until(lambda: source.state().synced_at_ns and source.state().pods and source.state().nodeslo, "the rest")
    until(lambda: any("namespaces" in each for each in source.state().problems), "the sentence")
    assert (source.state().namespaces, source.state().is_denied) == (None, False)
    if answer == 403:
        assert any("needs RBAC verb list" in each for each in source.state().problems)
    known, max_age_ns = ClusterView(labels_max_age_ns=90 * NS_PER_S), 90 * NS_PER_S
    known.refresh_namespaces(source.state(), 0)
    assert known.refresh_namespaces(source.state(), max_age_ns + 1)
    assert "every exemption counts" in known.problems[-1]


def test_a_watch_that_is_lost_has_a_moment_since_when_it_may_be_old(open_source: Open, cluster: Cluster) -> None:
    cluster.namespaces.items = [namespace("be", 10, tier="gold")]

    def cut(exchange: Exchange) -> None:
        exchange.stream()
        cluster.namespaces.watches.extend([gives(500, status(500, "no", "namespaces"))] * 3)
        exchange.cut()

    cluster.namespaces.watches.append(cut)
    sources: list[ApiSource] = []  # empty while it is opened, when it may wake already
    seen: list[int | None] = []
    sources.append(
        open_source(
            namespace_labels=TIER, wake=lambda: seen.extend(each.state().namespaces_since_ns for each in sources)
        )
    )
    (source,) = sources
    until(lambda: any(seen), "a moment at which they may be old")
    until(lambda: labels_of(source) and source.state().namespaces_since_ns is None, "a watch that is open")
    assert labels_of(source) == {"be": {"tier": "gold"}}


def test_a_page_that_is_too_large_is_asked_for_in_parts(open_source: Open, cluster: Cluster) -> None:
    every = [namespace(f"n{at}", 10 + at, tier="gold") for at in range(30)] + [namespace("be", 90, tier="lead")]
    for each in every:
        each["metadata"]["annotations"] = {"note": "x" * 200_000}  # as any creator of namespaces may write

    def page(exchange: Exchange) -> None:
        begin, limit = int(exchange.request.query.get("continue") or 0), int(exchange.request.query["limit"])
        end = min(begin + limit, len(every))
        exchange.answer(200, listing(every[begin:end], 100, str(end) if end < len(every) else ""))

    cluster.namespaces.lists += [page] * 100
    source = open_source(namespace_labels=TIER)
    until(lambda: labels_of(source) == {"be": {"tier": "lead"}}, "the labels")
    limits = [int(each.query["limit"]) for each in cluster.namespaces.seen_lists]
    assert limits[:4] == [500, 125, 31, 7]
    assert max(limits[4:]) <= 14
    assert len(limits) < 30


def test_what_cannot_be_read_costs_that_namespace_alone(open_source: Open, cluster: Cluster) -> None:
    odd = namespace("odd", 11)
    odd["metadata"]["labels"] = ["tier"]
    cluster.namespaces.items = [odd, namespace("be", 10, tier="gold")]
    source = open_source(namespace_labels=TIER)
    until(lambda: labels_of(source) == {"be": {"tier": "gold"}}, "the other")
    assert any("odd" in each for each in source.state().problems)


def test_5000_namespaces_take_little(open_source: Open, cluster: Cluster) -> None:
    every = [namespace(f"team-{at}", 10 + at, tier=f"tier-{at}", owner="x" * 60) for at in range(5_000)]
    every.append(namespace("be", 9, tier="gold"))
    pages = [every[at : at + PACE.page] for at in range(0, len(every), PACE.page)]
    bodies = [
        json.dumps(listing(page, 9_000, str(number + 1) if number + 1 < len(pages) else "")).encode()
        for number, page in enumerate(pages)
    ]

    def page(exchange: Exchange) -> None:
        exchange.answer(200, bodies[int(exchange.request.query.get("continue") or 0)])

    taken: list[int] = []
    tracemalloc.start()
    try:
        for asked in (None, TIER):
            cluster.namespaces.lists += [page] * 100
            before = tracemalloc.get_traced_memory()[0]
            source = open_source(namespace_labels=asked)
            until(lambda: source.state().synced_at_ns and source.state().nodeslo, "a picture")  # noqa: B023
            if asked:
                until(lambda: labels_of(source) == {"be": {"tier": "gold"}}, "the labels", 60)  # noqa: B023
            taken.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert taken[1] - taken[0] < 5 << 20


def test_more_than_any_cluster_has_are_not_kept(open_source: Open, cluster: Cluster) -> None:
    few = json.dumps(listing([namespace(f"n{at}", at) for at in range(400)], 100, "more")).encode()
    cluster.namespaces.lists += [gives(200, few)] * 200
    source = open_source(namespace_labels=TIER)
    until(lambda: any("more than 20000" in each for each in source.state().problems), "the sentence", 60)
    assert source.state().namespaces is None
    assert len(cluster.namespaces.seen_lists) >= MAX_NAMESPACES // 400


def test_no_more_come_by_the_watch(open_source: Open, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordebpf.kube.sources.namespaces.MAX_NAMESPACES", 2)
    steps: list[Exchange] = []

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        steps.append(exchange)
        exchange.hold()

    cluster.namespaces.items = [namespace("be", 10, tier="gold")]
    cluster.namespaces.watches.append(watch)
    source = open_source(namespace_labels=TIER)
    until(lambda: labels_of(source) == {"be": {"tier": "gold"}} and steps, "the labels")
    cluster.namespaces.lists += [gives(200, listing([namespace(f"n{at}", at) for at in range(3)], 300))] * 99
    lists = len(cluster.namespaces.seen_lists)
    for at in range(2):
        steps[0].event("ADDED", namespace(f"n{at}", 201 + at))
    until(lambda: any("more than 2:" in each for each in source.state().problems), "the sentence")
    until(lambda: len(cluster.namespaces.seen_lists) > lists + 1, "lists that have too many")
    assert source.state().namespaces_since_ns is not None  # they grow old
    cluster.namespaces.version = 400
    cluster.namespaces.lists.clear()
    until(lambda: source.state().namespaces_since_ns is None, "a watch that is open")
    assert labels_of(source) == {"be": {"tier": "gold"}}
