"""How long a watch lives, what proves that it does, and an etcd that was restored from a backup."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time

import msgspec
import pytest

from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.http.deadlines import OpenConnections
from koordebpf.kube.sources.api import ApiSource
from tests.contract.apiserver import Cluster, Exchange, gives, let_it_spin, listing, pod, status, until
from tests.contract.sources import PACE, Open

EXPIRED = status(410, "Expired", "too old resource version: 1 (2)")
QUICK = msgspec.structs.replace(PACE, silence_s=0.3, quiet_s=60.0, watch_s=3600)


def names(source: ApiSource) -> list[str]:
    return sorted(p.metadata.name for p in source.state().pods)


def bookmark(version: int) -> dict[str, object]:
    return {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}


def only_watches(cluster: Cluster) -> int:
    return len(cluster.pods.seen_watches)


def test_a_watch_is_asked_for_as_long_as_the_server_gives_by_itself(open_source: Open, cluster: Cluster) -> None:
    open_source(Pace())
    kinds = (cluster.pods, cluster.nodes, cluster.nodeslos, cluster.pdbs, cluster.topologies)
    until(lambda: all(each.seen_watches for each in kinds), "watches")
    asked_s = [int(each.seen_watches[0].query["timeoutSeconds"]) for each in kinds]
    assert all(1800 <= each <= 3600 for each in asked_s)
    assert len(set(asked_s)) > 1  # by chance: not all nodes ask again at once


def test_bookmarks_keep_a_watch_open_and_the_list_fresh(open_source: Open, cluster: Cluster) -> None:
    sent: list[int] = []

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        while not exchange._server.stopping.wait(0.05):
            exchange.event("BOOKMARK", bookmark(200 + len(sent)))
            sent.append(time.monotonic_ns())

    cluster.pods.watches.append(watch)
    # Patient beyond any machine's hiccup; what is asserted is that time alone ends nothing.
    source = open_source(msgspec.structs.replace(QUICK, silence_s=10.0))
    until(lambda: len(sent) > 20, "a second of bookmarks")
    until(lambda: source.state().synced_at_ns >= sent[20], "the proof that the twentieth is")
    assert (only_watches(cluster), len(cluster.pods.seen_lists)) == (1, 1)


def test_a_watch_that_says_nothing_from_its_beginning_is_reopened_without_complaint(
    open_source: Open, cluster: Cluster
) -> None:
    source = open_source(QUICK)
    until(lambda: only_watches(cluster) >= 3, "the third watch")
    assert source.state().problems == ()
    assert names(source) == ["a", "b"]
    # What may be quiet is: nothing but the pods' list is judged by the second.
    assert len(cluster.nodes.seen_watches) == len(cluster.nodeslos.seen_watches) == 1
    # The first time, and then now and again, it is asked whether its version went back.
    assert [r.query["limit"] for r in cluster.pods.seen_lists] == ["500", "1"]


def test_a_watch_that_sent_bookmarks_and_falls_silent_is_broken(open_source: Open, cluster: Cluster) -> None:
    def falls_silent(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("BOOKMARK", bookmark(250))
        exchange.hold()

    cluster.pods.watches.append(falls_silent)
    source = open_source(msgspec.structs.replace(QUICK, first_s=3600.0, cap_s=3600.0))
    said = until(lambda: next((p for p in source.state().problems if "pods" in p), None), "a problem")
    assert "has said nothing for 0.3 s" in said
    assert only_watches(cluster) == 1


def test_what_may_be_quiet_is_broken_once_it_has_sent_a_bookmark_and_falls_silent(
    open_source: Open, cluster: Cluster
) -> None:
    def falls_silent(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("BOOKMARK", bookmark(250) | {"kind": "Node"})
        exchange.hold()

    cluster.nodes.watches.append(falls_silent)
    pace = msgspec.structs.replace(QUICK, silence_s=60.0, bookmarks_s=0.3, first_s=3600.0, cap_s=3600.0)
    source = open_source(pace)
    said = until(lambda: next((p for p in source.state().problems if "nodes" in p), None), "a problem")
    assert "has said nothing for 0.3 s" in said
    assert len(cluster.nodes.seen_watches) == 1


def test_an_exchange_that_may_be_silent_for_less_time_is_cut_after_that() -> None:
    wires = OpenConnections()
    with wires.within(3600) as limit:
        until(lambda: wires._next_s < math.inf, "the thread, which waits for an hour")
        wires.expect(limit, 0.05)
        until(lambda: limit.is_over, "the end")
        assert limit.is_silent
    wires.cut()


def test_bytes_that_never_become_a_line_are_no_sign_of_life(open_source: Open, cluster: Cluster) -> None:
    def drips(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("BOOKMARK", bookmark(250))
        while not exchange._server.stopping.wait(0.05):
            exchange.chunk(b" ")

    cluster.pods.watches.append(drips)
    source = open_source(QUICK)
    until(lambda: only_watches(cluster) >= 2, "the watch after it")
    assert names(source) == ["a", "b"]


def test_an_open_watch_of_the_node_does_not_age_the_picture_and_a_broken_one_does(
    open_source: Open, cluster: Cluster
) -> None:
    go = threading.Event()

    def breaks(exchange: Exchange) -> None:
        exchange.stream()
        go.wait(30)
        exchange.cut()

    cluster.nodes.watches += [breaks] + [lambda exchange: exchange.cut()] * 10_000
    source = open_source(QUICK)
    until(lambda: source.state().synced_at_ns, "the first picture")
    at_ns = time.monotonic_ns()
    until(lambda: source.state().synced_at_ns > at_ns, "proof by the pods' watch alone")
    go.set()
    until(lambda: source.state().problems, "the Node's watch broken")
    count, at_ns = only_watches(cluster), time.monotonic_ns()
    until(lambda: only_watches(cluster) >= count + 2, "more proofs of the pods")
    assert source.state().synced_at_ns < at_ns


def test_a_peer_that_is_gone_is_found_by_tcp(open_source: Open, cluster: Cluster) -> None:
    source = open_source(PACE)
    until(lambda: len(cluster.server.held) == 5, "five watches")
    for sock in list(source._transport._wires._sockets):
        if sock.fileno() >= 0:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, gap, count = (
                sock.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + gap * count <= 60
            assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000


@pytest.mark.parametrize("code", [404, 403])
def test_what_is_not_served_or_not_allowed_is_asked_for_ever_more_rarely(
    code: int, open_source: Open, cluster: Cluster
) -> None:
    at_s: list[float] = []

    def refuses(exchange: Exchange) -> None:
        at_s.append(time.monotonic())
        exchange.answer(code, status(code, "", "no"))

    cluster.topologies.lists += [refuses] * 1000
    open_source(msgspec.structs.replace(PACE, slow_s=0.04))
    until(lambda: len(at_s) >= 7, "seven questions")
    # Waits double up to ten times, each at least half of itself.
    assert at_s[6] - at_s[5] >= 0.2


class TestARestoredEtcd:
    # Serves what a backup had: fewer pods, an older version.
    def restore(self, cluster: Cluster) -> None:
        cluster.pods.items = [pod("a", 10)]
        cluster.pods.version = 90

    def test_older_lists_are_the_truth_when_nothing_else_comes(
        self, open_source: Open, cluster: Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        at: list[int] = []

        def answers(exchange: Exchange) -> None:
            at.append(cluster.server.connections)
            exchange.answer(200, listing(cluster.pods.items, cluster.pods.version))

        cluster.pods.watches.append(gives(410, EXPIRED))
        cluster.pods.lists += [gives(200, listing(cluster.pods.items, 100))] + [answers] * 1000
        self.restore(cluster)
        with caplog.at_level(logging.WARNING):
            source = open_source(msgspec.structs.replace(PACE, restored_s=0.4))
            until(lambda: names(source) == ["a"], "what the backup had")
        assert any("etcd was restored from a backup" in record.getMessage() for record in caplog.records)
        until(lambda: source.state().problems == (), "health")
        assert len(at) >= 3
        assert len(set(at)) >= 3, "each list on a connection of its own"
        assert until(lambda: len(cluster.pods.seen_watches) > 1, "a watch")
        assert cluster.pods.seen_watches[-1].query["resourceVersion"] == "90"

    def test_one_newer_list_among_them_and_they_are_of_servers_that_lag(
        self, open_source: Open, cluster: Cluster
    ) -> None:
        new = listing(cluster.pods.items, 100)
        # 410 after each good list: lists follow one another, every third one is up to date.
        cluster.pods.watches += [gives(410, EXPIRED)] * 10_000
        old = gives(200, listing([], 90))
        cluster.pods.lists += [gives(200, new), *[old, old, gives(200, new)] * 1000]
        source = open_source(msgspec.structs.replace(PACE, restored_s=0.05))
        until(lambda: len(cluster.pods.seen_lists) > 30, "many lists")
        assert names(source) == ["a", "b"]

    def test_lists_that_go_back_further_each_time_are_not_consistent(self, open_source: Open, cluster: Cluster) -> None:
        cluster.pods.watches.append(gives(410, EXPIRED))
        cluster.pods.lists += [gives(200, listing(cluster.pods.items, 100))]
        cluster.pods.lists += [gives(200, listing([], 90 - n)) for n in range(60)]
        source = open_source(msgspec.structs.replace(PACE, restored_s=0.05))
        until(lambda: len(cluster.pods.seen_lists) > 30, "many lists")
        assert names(source) == ["a", "b"]

    def test_a_watch_that_waits_for_a_version_yet_to_come_is_found_out(
        self, open_source: Open, cluster: Cluster
    ) -> None:
        # The API server takes a watch from a version that it has not reached, and is silent until it has.
        source = open_source(msgspec.structs.replace(QUICK, restored_s=0.4))
        until(lambda: names(source) == ["a", "b"] and source.state().nodeslo, "the first picture")
        until(lambda: len(cluster.server.held) == 5, "five watches")
        for collection in (cluster.nodes, cluster.nodeslos, cluster.pdbs, cluster.topologies):
            collection.version = 90
        self.restore(cluster)
        cluster.nodeslos.items = []
        until(lambda: names(source) == ["a"], "what the backup had")
        until(lambda: source.state().nodeslo is None, "of the other resources too, whose watches say nothing for long")
        let_it_spin()
        assert len(cluster.nodeslos.seen_lists) == 2
