"""The api source against a server that misbehaves."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from koordebpf.errors import ConfigError
from koordebpf.kube.config_map import ConfigMapName
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource
from tests.contract.apiserver import (
    Cluster,
    Exchange,
    gives,
    hold_open,
    let_it_spin,
    listing,
    node,
    nodeslo,
    pod,
    status,
    until,
)
from tests.contract.sources import PACE, Open
from tests.support.started import StartedSince

EXPIRED = status(410, "Expired", "too old resource version: 1 (2)")


def names(source: ApiSource) -> list[str]:
    return sorted(p.metadata.name for p in source.state().pods)


def synced(source: ApiSource) -> None:
    """Wait until all three resources were listed."""
    until(lambda: source.state().synced_at_ns and source.state().nodeslo, "the first picture")


def complaint(source: ApiSource, part: str) -> str:
    return str(until(lambda: next((p for p in source.state().problems if part in p), None), f"a problem: {part}"))


def test_nothing_is_known_before_the_first_lists(kubeconfig: Path, cluster: Cluster) -> None:
    source = ApiSource(open_cluster(kubeconfig), "n1", PACE)
    assert (source.state().version, source.state().synced_at_ns) == (0, 0)
    source.close()
    assert cluster.server.requests == []


def test_pods_node_and_nodeslo_become_one_state(open_source: Open, cluster: Cluster) -> None:
    woken = threading.Event()
    source = open_source(wake=woken.set)
    synced(source)

    state = source.state()
    assert names(source) == ["a", "b"]
    assert state.node is not None
    assert state.node.status.capacity == {"memory": "16Gi"}
    assert state.nodeslo is not None
    assert msgspec.json.decode(state.nodeslo) == nodeslo(7)
    assert state.slo_controller_config is None
    assert state.problems == ()
    assert woken.is_set()
    assert cluster.pods.seen_lists[0].query["fieldSelector"] == "spec.nodeName=n1"
    assert cluster.nodes.seen_lists[0].query["fieldSelector"] == "metadata.name=n1"
    assert cluster.nodeslos.seen_lists[0].query["fieldSelector"] == "metadata.name=n1"
    assert cluster.configmaps.seen_lists == []
    assert {r.headers["authorization"] for r in cluster.server.requests} == {"Bearer sesame"}
    watch = until(lambda: cluster.pods.seen_watches, "a watch of the pods")[0]
    assert watch.query["resourceVersion"] == "100"
    assert watch.query["allowWatchBookmarks"] == "true"
    assert int(watch.query["timeoutSeconds"]) >= 30


def test_events_change_the_state_and_wake(open_source: Open, cluster: Cluster) -> None:
    go = threading.Event()

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        go.wait(30)
        exchange.event("ADDED", pod("c", 101))
        exchange.event("MODIFIED", pod("a", 102, qos="BE"))
        exchange.event("DELETED", pod("b", 103))
        exchange.hold()

    cluster.pods.watches.append(watch)
    wakes: list[int] = []
    source = open_source(wake=lambda: wakes.append(1))
    synced(source)
    version, before = source.state().version, len(wakes)
    go.set()
    until(lambda: names(source) == ["a", "c"], "the events")
    assert source.state().version >= version + 3
    assert len(wakes) >= before + 3
    assert next(p for p in source.state().pods if p.metadata.name == "a").metadata.labels == {"qos": "BE"}
    assert len(cluster.pods.seen_lists) == 1


def test_bookmark_moves_the_resume_point_without_a_new_list(open_source: Open, cluster: Cluster) -> None:
    def ends_after_a_bookmark(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "250"}})
        exchange.end()

    def ends_after_an_event(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("ADDED", pod("c", 260))
        exchange.end()

    cluster.pods.watches += [ends_after_a_bookmark, ends_after_an_event]
    source = open_source()
    until(lambda: len(cluster.pods.seen_watches) >= 3, "the third watch")
    assert [w.query["resourceVersion"] for w in cluster.pods.seen_watches] == ["100", "250", "260"]
    assert len(cluster.pods.seen_lists) == 1
    until(lambda: names(source) == ["a", "b", "c"], "the event between")
    assert source.state().problems == ()


def test_bookmark_is_a_sign_of_life_and_no_news(open_source: Open, cluster: Cluster) -> None:
    go = threading.Event()

    def bookmarks_after(obj: object) -> Callable[[Exchange], None]:
        def watch(exchange: Exchange) -> None:
            exchange.stream()
            exchange.event("MODIFIED", obj)
            go.wait(30)
            exchange.event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "301"}})
            exchange.hold()

        return watch

    cluster.pods.watches.append(bookmarks_after(pod("c", 300)))
    cluster.nodes.watches.append(bookmarks_after({**node(300), "status": {"capacity": {"memory": "32Gi"}}}))
    cluster.nodeslos.watches.append(bookmarks_after(nodeslo(300)))
    source = open_source()

    def is_seen() -> bool:
        state = source.state()
        return bool(
            names(source) == ["a", "b", "c"]
            and state.node
            and state.node.status.capacity == {"memory": "32Gi"}
            and state.nodeslo
            and b'"300"' in bytes(state.nodeslo)
            and cluster.topologies.seen_watches  # its list is news, too
            and cluster.pdbs.seen_watches
        )

    until(is_seen, "the event before each bookmark")
    version, at_ns = source.state().version, time.monotonic_ns()
    assert source.state().synced_at_ns < at_ns
    go.set()
    until(lambda: source.state().synced_at_ns > at_ns, "signs of life after all events")
    assert source.state().version == version


@pytest.mark.parametrize("how", ["status", "event"])
def test_410_brings_one_new_list(how: str, open_source: Open, cluster: Cluster) -> None:
    def expired(exchange: Exchange) -> None:
        cluster.pods.items = [pod("z", 300)]
        cluster.pods.version = 310
        if how == "status":
            exchange.answer(410, EXPIRED)
        else:
            exchange.stream()
            exchange.event("ERROR", EXPIRED)
            exchange.end()

    cluster.pods.watches.append(expired)
    source = open_source()
    until(lambda: names(source) == ["z"], "the new list")
    until(lambda: len(cluster.pods.seen_watches) == 2 and cluster.server.held, "the second watch")
    assert len(cluster.pods.seen_lists) == 2
    assert "resourceVersion" not in cluster.pods.seen_lists[1].query
    assert cluster.pods.seen_watches[1].query["resourceVersion"] == "310"
    assert source.state().problems == ()


def test_endless_410_is_not_a_hot_loop(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.watches += [gives(410, EXPIRED)] * 1000
    source = open_source(msgspec.structs.replace(PACE, first_s=3600.0, cap_s=3600.0))
    complaint(source, "too old resource version")
    let_it_spin()
    # The first 410 lists again at once, the second waits an hour.
    assert len(cluster.pods.seen_lists) == 2
    assert len(cluster.pods.seen_watches) == 2


def test_410_after_a_sign_of_health_lists_at_once_again(open_source: Open, cluster: Cluster) -> None:
    def expires_after_an_event(exchange: Exchange) -> None:
        exchange.stream()
        cluster.pods.version = 120
        exchange.event("ADDED", pod("c", 120))
        exchange.event("ERROR", EXPIRED)
        exchange.end()

    cluster.pods.watches += [gives(410, EXPIRED), expires_after_an_event]
    source = open_source(msgspec.structs.replace(PACE, first_s=3600.0, cap_s=3600.0))
    until(lambda: len(cluster.pods.seen_watches) == 3, "the watch after the second 410")
    assert len(cluster.pods.seen_lists) == 3
    assert source.state().problems == ()


def test_other_error_events_resume_without_a_list(open_source: Open, cluster: Cluster) -> None:
    def fails(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("ADDED", pod("c", 120))
        exchange.event("ERROR", status(500, "InternalError", "etcdserver: leader changed"))
        exchange.end()

    cluster.pods.watches.append(fails)
    source = open_source()
    until(lambda: len(cluster.pods.seen_watches) == 2, "the second watch")
    assert cluster.pods.seen_watches[1].query["resourceVersion"] == "120"
    assert len(cluster.pods.seen_lists) == 1
    until(lambda: source.state().problems == (), "health")


@pytest.mark.parametrize("chunked", [True, False], ids=["inside a chunk", "after a close-delimited half line"])
def test_connection_cut_inside_a_line_resumes_after_the_last_whole_event(
    chunked: bool, open_source: Open, cluster: Cluster
) -> None:
    half = json.dumps({"type": "ADDED", "object": pod("d", 125)}).encode()[:60]

    def cut(exchange: Exchange) -> None:
        if chunked:
            exchange.stream()
            exchange.event("ADDED", pod("c", 120))
            exchange.raw(f"{len(half) + 40:x}\r\n".encode() + half)
        else:
            exchange.head(200, Connection="close")
            exchange.raw(json.dumps({"type": "ADDED", "object": pod("c", 120)}).encode() + b"\n" + half)
        exchange.cut()

    cluster.pods.watches.append(cut)
    source = open_source()
    until(lambda: len(cluster.pods.seen_watches) == 2, "the second watch")
    assert cluster.pods.seen_watches[1].query["resourceVersion"] == "120"
    assert len(cluster.pods.seen_lists) == 1
    until(lambda: names(source) == ["a", "b", "c"] and source.state().problems == (), "only what came whole")


def test_half_a_line_is_a_broken_connection(open_source: Open, cluster: Cluster) -> None:
    def half(exchange: Exchange) -> None:
        exchange.head(200, Connection="close")
        exchange.raw(b'{"type": "ADDED", "obj')
        exchange.cut()

    cluster.pods.watches.append(half)
    source = open_source(msgspec.structs.replace(PACE, first_s=3600.0, cap_s=3600.0))
    assert "was cut inside a line" in complaint(source, "watch pods")
    assert names(source) == ["a", "b"]


def test_events_in_pieces_and_many_in_one_piece(open_source: Open, cluster: Cluster) -> None:
    lines = b"".join(json.dumps({"type": "ADDED", "object": pod(f"p{i}", 200 + i)}).encode() + b"\n" for i in range(5))

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        exchange.chunk(lines[:7])
        exchange.chunk(lines[7:-1])
        exchange.chunk(lines[-1:])
        exchange.hold()

    cluster.pods.watches.append(watch)
    source = open_source()
    until(lambda: names(source) == ["a", "b", "p0", "p1", "p2", "p3", "p4"], "all events")


@pytest.mark.slow
def test_silent_watch_is_cut_and_resumed(open_source: Open, cluster: Cluster) -> None:
    source = open_source(msgspec.structs.replace(PACE, watch_s=1, grace_s=0.05))
    until(lambda: len(cluster.pods.seen_watches) >= 2, "the watch after the silent one")
    assert len(cluster.pods.seen_lists) == 1
    assert names(source) == ["a", "b"]


def test_slow_list_body_times_out_and_is_asked_again(open_source: Open, cluster: Cluster) -> None:
    body = json.dumps(listing(cluster.pods.items, 100)).encode()

    def drips(exchange: Exchange) -> None:
        exchange.head(200, Content_Length=str(len(body)))
        # Each byte comes well within the socket's own time-out; only a limit on the whole ends this.
        for byte in body:
            exchange.raw(bytes([byte]))
            if exchange._server.stopping.wait(0.1):
                return

    cluster.pods.lists.append(drips)
    source = open_source(msgspec.structs.replace(PACE, answer_s=0.3))
    synced(source)
    assert len(cluster.pods.seen_lists) >= 2  # a busy machine may be as slow once more


def test_stale_list_is_ignored(open_source: Open, cluster: Cluster) -> None:
    def expired(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("ADDED", pod("c", 130))
        exchange.event("ERROR", EXPIRED)
        exchange.end()

    cluster.pods.watches.append(expired)
    # Another API server, whose cache stands at 90, answers the next two lists.
    cluster.pods.lists += [gives(200, listing(cluster.pods.items, 100))] + [gives(200, listing([], 90))] * 2
    cluster.pods.version = 140
    cluster.pods.items.append(pod("c", 130))
    seen: list[list[str]] = []
    source: ApiSource | None = None
    source = open_source(wake=lambda: seen.append(names(source)) if source else None)
    until(lambda: len(cluster.pods.seen_lists) == 4, "the list of a server that is up to date")
    until(lambda: len(cluster.pods.seen_watches) == 2, "the watch after it")
    assert cluster.pods.seen_watches[1].query["resourceVersion"] == "140"
    assert names(source) == ["a", "b", "c"]
    assert [] not in seen[seen.index(["a", "b", "c"]) :]


def test_stale_list_says_so(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.watches.append(gives(410, EXPIRED))
    cluster.pods.lists += [gives(200, listing(cluster.pods.items, 100))] + [gives(200, listing([], 90))] * 1000
    source = open_source()
    assert (
        complaint(source, "older") == "list pods: resourceVersion 90 is older than the known 100; the answer is ignored"
    )
    assert names(source) == ["a", "b"]


def test_duplicated_and_reordered_events_are_harmless(open_source: Open, cluster: Cluster) -> None:
    def watch(exchange: Exchange) -> None:
        exchange.stream()
        for kind, obj in (
            ("ADDED", pod("a", 10)),  # in the list already
            ("MODIFIED", pod("a", 120, step="new")),
            ("MODIFIED", pod("a", 110, step="old")),  # late
            ("MODIFIED", pod("a", 120, step="twice")),  # again
            ("DELETED", pod("b", 130)),
            ("DELETED", pod("b", 130)),
            ("MODIFIED", pod("b", 125)),  # late: does not bring it back
            ("ADDED", pod("b", 140, uid="uid-b2")),  # a new pod of the same name
            ("DELETED", pod("b", 130)),  # of the old one
            ("ADDED", pod("end", 150)),
        ):
            exchange.event(kind, obj)
        exchange.hold()

    cluster.pods.watches.append(watch)
    source = open_source()
    until(lambda: "end" in names(source), "the last event")
    by_name = {p.metadata.name: p for p in source.state().pods}
    assert by_name["a"].metadata.labels == {"step": "new"}
    assert by_name["b"].uid == "uid-b2"
    assert len(source.state().pods) == 3
    assert source.state().problems == ()


def test_garbage_objects_do_not_cost_the_others(open_source: Open, cluster: Cluster) -> None:
    broken = pod("broken", 50)
    broken["spec"]["containers"] = "none"
    no_uid = pod("nameless", 51)
    del no_uid["metadata"]["uid"]
    cluster.pods.items = [pod("a", 10), broken, 17, no_uid, pod("b", 20)]
    turned = pod("a", 120)
    turned["metadata"]["labels"] = ["x"]

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("MODIFIED", turned)
        exchange.event("ADDED", pod("c", 121))
        exchange.hold()

    cluster.pods.watches.append(watch)
    source = open_source()
    until(lambda: "c" in names(source), "the event after the garbage")
    assert names(source) == ["a", "b", "c"]
    problems = source.state().problems
    assert any(p.startswith("pods: be/broken cannot be read and is left out: ") and "containers" in p for p in problems)
    assert any(p == "pods: be/nameless has no UID and is left out" for p in problems)
    assert any("an object without a name" in p for p in problems)
    assert any(p.startswith("pods: be/a cannot be read and stays as it was: ") for p in problems)
    assert len(problems) == 4


def test_garbage_is_forgotten_when_it_is_repaired(open_source: Open, cluster: Cluster) -> None:
    broken = pod("b", 20)
    broken["spec"] = []
    cluster.pods.items = [pod("a", 10), broken]
    go = threading.Event()

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        go.wait(30)
        exchange.event("MODIFIED", pod("b", 120))
        exchange.hold()

    cluster.pods.watches.append(watch)
    source = open_source()
    complaint(source, "be/b")
    go.set()
    until(lambda: names(source) == ["a", "b"], "the repaired pod")
    assert source.state().problems == ()


def test_line_that_is_no_event_brings_a_new_list(open_source: Open, cluster: Cluster) -> None:
    def rubbish(exchange: Exchange) -> None:
        exchange.stream()
        exchange.chunk(b"<html>proxy error</html>\n")
        exchange.hold()

    cluster.pods.watches.append(rubbish)
    source = open_source()
    until(lambda: len(cluster.pods.seen_lists) == 2, "the second list")
    until(lambda: source.state().problems == (), "health")


def test_five_thousand_pods_come_in_pages(open_source: Open, cluster: Cluster) -> None:
    everything = [pod(f"p{i:04}", i + 1) for i in range(5000)]

    def page(exchange: Exchange) -> None:
        query = exchange.request.query
        begin = int(query.get("continue", "0"))
        end = begin + int(query["limit"])
        more = str(end) if end < len(everything) else ""
        exchange.answer(200, listing(everything[begin:end], 9000, more))

    cluster.pods.lists += [page] * 10
    source = open_source()
    until(lambda: len(source.state().pods) == 5000, "all pods")
    assert [r.query.get("continue") for r in cluster.pods.seen_lists] == [None, *(str(i * 500) for i in range(1, 10))]
    assert until(lambda: cluster.pods.seen_watches, "a watch")[0].query["resourceVersion"] == "9000"


def test_expired_continue_token_restarts_the_list(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.lists += [gives(200, listing([pod("old", 1)], 50, "token")), gives(410, EXPIRED)]
    source = open_source()
    until(lambda: names(source) == ["a", "b"], "the whole list")
    assert [r.query.get("continue") for r in cluster.pods.seen_lists] == [None, "token", None]


@pytest.mark.parametrize(("code", "reason"), [(401, "Unauthorized"), (403, "Forbidden")])
def test_denied_names_verb_and_resource_and_is_retried(
    code: int, reason: str, open_source: Open, cluster: Cluster
) -> None:
    allowed = threading.Event()

    def answers(exchange: Exchange) -> None:
        if allowed.is_set():
            exchange.answer(200, listing(cluster.pods.items, cluster.pods.version))
        else:
            exchange.answer(code, status(code, reason, 'User "agent" cannot list resource "pods"'))

    cluster.pods.lists += [answers] * 10_000
    source = open_source()
    sentence = complaint(source, "list pods")
    assert str(code) in sentence
    assert "needs RBAC verb list on pods" in sentence
    assert source.state().synced_at_ns == 0
    assert source.state().is_denied  # the server is there: the agent may not act as if it were not
    until(lambda: len(cluster.pods.seen_lists) >= 3, "the question, again and again")
    allowed.set()
    until(lambda: source.state().synced_at_ns, "the list once it is allowed")


def test_denied_is_no_hot_loop(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.lists += [gives(403, status(403, "Forbidden", "no"))] * 1000
    source = open_source(msgspec.structs.replace(PACE, first_s=3600.0))
    complaint(source, "list pods")
    until(lambda: cluster.nodeslos.seen_watches and cluster.nodes.seen_watches, "the other resources")
    let_it_spin()
    assert len(cluster.pods.seen_lists) == 1
    assert source.state().node is not None


def test_a_server_that_has_not_read_its_roles_yet_is_asked_again_soon(open_source: Open, cluster: Cluster) -> None:
    for each in (cluster.pods, cluster.nodes, cluster.nodeslos, cluster.topologies):
        each.lists += [gives(403, status(403, "Forbidden", "no"))] * 3
    source = open_source(msgspec.structs.replace(PACE, slow_s=3600.0))
    until(lambda: source.state().synced_at_ns and source.state().problems == (), "all that is allowed")
    assert names(source) == ["a", "b"]


def test_denied_watch_keeps_what_was_listed(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.watches += [gives(403, status(403, "Forbidden", "no watch"))] * 1000
    source = open_source()
    assert "needs RBAC verb watch on pods" in complaint(source, "watch pods")
    assert source.state().is_denied
    assert names(source) == ["a", "b"]
    assert len(cluster.pods.seen_lists) == 1


def test_overload_and_server_errors_are_asked_again(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.lists += [
        gives(429, b"Too many requests, please try again later.\n", Retry_After="0"),
        gives(503, status(503, "ServiceUnavailable", "starting")),
        gives(500, b"rubbish \xff"),
        gives(200, b'{"items": 3}'),
        gives(200, b'{"items": [{'),
        lambda exchange: exchange.cut(),
    ]
    source = open_source()
    until(lambda: source.state().synced_at_ns and names(source) == ["a", "b"], "the list")
    assert len(cluster.pods.seen_lists) == 7
    until(lambda: source.state().problems == (), "health")


def test_retry_after_is_obeyed(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.lists += [gives(429, b"Too many requests", Retry_After="200")] * 1000
    source = open_source()
    complaint(source, "429")
    until(lambda: cluster.nodes.seen_watches, "the other resources")
    let_it_spin()
    assert len(cluster.pods.seen_lists) == 1


def test_watch_that_ends_at_once_is_not_a_hot_loop(open_source: Open, cluster: Cluster) -> None:
    def ends(exchange: Exchange) -> None:
        exchange.stream()
        exchange.end()

    cluster.pods.watches += [ends] * 1000
    source = open_source(msgspec.structs.replace(PACE, first_s=3600.0, cap_s=3600.0))
    synced(source)
    until(lambda: cluster.pods.seen_watches, "a watch")
    let_it_spin()
    assert len(cluster.pods.seen_watches) == 1


def test_absent_crd_is_quiet_and_the_configmap_stands_in(open_source: Open, cluster: Cluster) -> None:
    missing = gives(404, b"404 page not found\n")
    cluster.nodeslos.lists += [missing] * 3
    data = {"resource-threshold-config": '{"clusterStrategy": {"enable": true}}'}
    meta = {"name": "slo-controller-config", "namespace": "koordinator-system", "uid": "uid-cm", "resourceVersion": "3"}
    cluster.configmaps.items = [{"metadata": meta, "data": data}]
    source = open_source()
    until(lambda: source.state().slo_controller_config == data, "the ConfigMap")
    assert cluster.configmaps.seen_lists[0].query["fieldSelector"] == "metadata.name=slo-controller-config"
    # The CRD is installed later.
    until(lambda: source.state().nodeslo, "the NodeSLO")
    assert len(cluster.nodeslos.seen_lists) == 4
    assert source.state().problems == ()


def test_a_configmap_of_another_name_is_asked_for_by_it(open_source: Open, cluster: Cluster) -> None:
    cluster.nodeslos.lists += [gives(404, b"404 page not found\n")] * 1000
    open_source(config_map=ConfigMapName("ack-slo-config", "koordinator-system"))
    until(lambda: cluster.configmaps.seen_lists, "a list")
    assert cluster.configmaps.seen_lists[0].query["fieldSelector"] == "metadata.name=ack-slo-config"


def test_forbidden_configmap_is_a_problem_and_no_obstacle(open_source: Open, cluster: Cluster) -> None:
    cluster.nodeslos.lists += [gives(404, b"404 page not found\n")] * 1000
    cluster.configmaps.lists += [gives(403, status(403, "Forbidden", "no"))] * 1000
    source = open_source()
    assert "needs RBAC verb list on configmaps" in complaint(source, "configmaps")
    until(lambda: source.state().synced_at_ns, "the first sync: each reflector arrives in its own time")
    assert source.state().nodeslo is None
    assert source.state().slo_controller_config is None


def test_node_that_does_not_exist_is_said(open_source: Open, cluster: Cluster) -> None:
    cluster.nodes.items = []
    source = open_source()
    assert complaint(source, "no Node") == "nodes: there is no Node n1"
    assert source.state().node is None


def test_broken_connection_lets_the_state_age(open_source: Open, cluster: Cluster) -> None:
    cluster.nodes.watches += [lambda exchange: exchange.cut()] * 10_000
    source = open_source()
    synced(source)
    until(lambda: cluster.pods.seen_watches and cluster.nodeslos.seen_watches, "the other resources")
    complaint(source, "watch nodes")
    # Nothing but signs of life moves this, and of the Node there are none any more, whatever the others say.
    at_ns = time.monotonic_ns()
    count = len(cluster.nodes.seen_watches)
    until(lambda: len(cluster.nodes.seen_watches) > count + 3, "more failures")
    assert source.state().synced_at_ns < at_ns
    assert source.state().node is not None


def test_deleted_nodeslo_is_gone_from_the_state(open_source: Open, cluster: Cluster) -> None:
    go = threading.Event()

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("MODIFIED", nodeslo(120, percent=60))
        go.wait(30)
        exchange.event("DELETED", nodeslo(130, percent=60))
        exchange.hold()

    cluster.nodeslos.watches.append(watch)
    source = open_source()

    def percent() -> object:
        raw = source.state().nodeslo
        return raw and msgspec.json.decode(raw)["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"]

    until(lambda: percent() == 60, "the change")
    go.set()
    until(lambda: source.state().nodeslo is None, "the deletion")


@pytest.fixture
def since() -> StartedSince:
    return StartedSince()


def test_close_ends_threads_while_watches_and_lists_hang(
    since: StartedSince, open_source: Open, cluster: Cluster
) -> None:
    cluster.nodes.lists.append(lambda exchange: exchange.hold())  # no answer at all

    def half_a_head(exchange: Exchange) -> None:
        exchange.raw(b"HTTP/1.1 200 OK\r\nContent-")
        exchange.hold()

    cluster.nodeslos.lists.append(half_a_head)
    source = open_source(msgspec.structs.replace(PACE, answer_s=600.0, watch_s=600))
    until(lambda: len(cluster.server.held) == 5, "five hanging requests")
    assert len(since.threads("kube-")) == 5
    source.close()
    assert since.threads("kube-") == []


def test_close_ends_threads_that_wait_to_connect(since: StartedSince, tmp_path: Path, kubeconfig: Path) -> None:
    # A listener that never accepts, its queue full: the connection attempt itself hangs.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        text = kubeconfig.read_text()
        begin = text.index("http://127.0.0.1:")
        kubeconfig.write_text(text[:begin] + f"http://127.0.0.1:{port}" + text[text.index('"', begin) :])
        source = ApiSource(open_cluster(kubeconfig), "n1", PACE)
        source.start(lambda: None)
        time.sleep(0.05)  # into connect(2), or not yet: both must end
        source.close()
        left = since.threads("kube-")
        for filler in fillers:
            filler.close()
    assert left == []


def test_close_ends_a_tls_handshake_that_hangs(since: StartedSince, kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        text = kubeconfig.read_text()
        begin = text.index("http://127.0.0.1:")
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        kubeconfig.write_text(text[:begin] + url + text[text.index('"', begin) :])
        source = ApiSource(open_cluster(kubeconfig), "n1", PACE)
        source.start(lambda: None)
        listener.settimeout(30)
        accepted = [listener.accept()[0] for _ in range(3)]
        for sock in accepted:
            sock.settimeout(30)
            assert sock.recv(1) == b"\x16"  # a ClientHello: they wait for our answer now
        source.close()
        assert since.threads("kube-") == []
        for sock in accepted:
            sock.close()


@pytest.mark.parametrize("name", ["", "n1,metadata.name=n2"])
def test_node_name_must_be_one(name: str, kubeconfig: Path) -> None:
    with pytest.raises(ConfigError, match="node name"):
        ApiSource(open_cluster(kubeconfig), name)


def test_unusable_kubeconfig_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "missing"
    with pytest.raises(ConfigError, match=str(path)):
        open_cluster(path)


@pytest.mark.parametrize(
    "text", ["{a: [", "[]", "clusters: 3", "current-context: x\nclusters: [1]\ncontexts: [x]", "\0"]
)
def test_what_is_no_kubeconfig_names_the_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*must lead to an API server"):
        open_cluster(path)


def test_in_cluster_configuration_outside_of_a_pod_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="in-cluster configuration"):
        open_cluster()


def test_healthy_connection_is_never_listed_twice(open_source: Open, cluster: Cluster) -> None:
    def one_event(version: int) -> Callable[[Exchange], None]:
        def watch(exchange: Exchange) -> None:
            exchange.stream()
            exchange.event("MODIFIED", node(version))
            exchange.end()

        return watch

    cluster.nodes.watches += [one_event(200 + i) for i in range(20)]
    source = open_source()
    until(lambda: len(cluster.nodes.seen_watches) == 21, "20 watches that ended in good order")
    assert len(cluster.nodes.seen_lists) == 1
    assert [w.query["resourceVersion"] for w in cluster.nodes.seen_watches[1:]] == [str(200 + i) for i in range(20)]
    assert source.state().problems == ()


def test_hold_open_is_what_a_healthy_watch_looks_like(open_source: Open, cluster: Cluster) -> None:
    cluster.pods.watches.append(hold_open)
    source = open_source()
    synced(source)
    until(lambda: len(cluster.server.held) == 5, "five quiet watches")
    assert len(cluster.server.requests) == 10
    assert source.state().problems == ()
