"""A server that trickles: each byte comes well within the socket's own time-out, and the answer never ends."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import urllib3

from koordebpf.errors import KubeError
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.clients.evictions import KubeActions
from koordebpf.kube.http.transport import Transport, open_cluster
from tests.contract.apiserver import Cluster, Exchange, Reply, Server, gives, listing, pod, until
from tests.contract.sources import Open
from tests.support.patience import patience

EVERY_S = 0.02
PACE = Pace(first_s=0.02, cap_s=0.05, slow_s=0.05, watch_s=30, grace_s=30.0, answer_s=0.4)
EVICTION = "/api/v1/namespaces/be/pods/a/eviction"


def drip(exchange: Exchange, byte: bytes) -> None:
    exchange.keeps_alive = False
    while not exchange._server.stopping.wait(EVERY_S):
        exchange.raw(byte)


def status_line(exchange: Exchange) -> None:
    drip(exchange, b" ")


def header(exchange: Exchange) -> None:
    exchange.raw(b"HTTP/1.1 200 OK\r\nX-Header: ")
    drip(exchange, b"x")


def body(exchange: Exchange) -> None:
    exchange.head(200, Content_Length="100000")
    drip(exchange, b" ")


def body_without_a_length(exchange: Exchange) -> None:
    exchange.head(200, Connection="close")
    drip(exchange, b" ")


def size_of_a_chunk(exchange: Exchange) -> None:
    exchange.stream()
    drip(exchange, b"0")


def name_after_a_chunk(exchange: Exchange) -> None:
    exchange.stream()
    exchange.raw(b"1;")
    drip(exchange, b"x")


def line_of_a_watch(exchange: Exchange) -> None:
    exchange.stream()
    exchange.chunk(b'{"type":"ADDED","object":{"x":"')
    exchange.keeps_alive = False
    while not exchange._server.stopping.wait(EVERY_S):
        exchange.chunk(b"x")


ANSWERS = [status_line, header, body, body_without_a_length, size_of_a_chunk, name_after_a_chunk]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    assert not [each for each in threading.enumerate() if each.name == "wire-limits"]


@pytest.fixture
def actions(kubeconfig: Path) -> Iterator[KubeActions]:
    actions = KubeActions(open_cluster(kubeconfig), "n1")
    yield actions
    actions.close()


@pytest.mark.parametrize("reply", ANSWERS)
def test_a_list_ends_in_its_time_and_the_next_one_serves(reply: Reply, open_source: Open, cluster: Cluster) -> None:
    cluster.pods.lists += [reply] * 2
    source = open_source(PACE)
    until(lambda: [each.metadata.name for each in source.state().pods] == ["a", "b"], "the pods")
    assert len(cluster.pods.seen_lists) >= 3  # a busy machine may take as long for the good one, once more
    print(f"{reply.__name__}, trickled: tried 2 lists, survived 2, lost 0")


@pytest.mark.slow
@pytest.mark.parametrize("reply", [status_line, header, size_of_a_chunk, name_after_a_chunk, line_of_a_watch])
def test_a_watch_ends_in_its_time_and_continues_without_a_new_list(
    reply: Reply, open_source: Open, cluster: Cluster
) -> None:
    def tells(exchange: Exchange) -> None:
        exchange.stream()
        exchange.event("ADDED", pod("c", 130))
        exchange.hold()

    cluster.pods.watches += [reply, *[tells] * 1000]  # on a busy machine it may be cut before it is heard
    source = open_source(msgspec.structs.replace(PACE, watch_s=1, grace_s=0.1, answer_s=10.0))
    until(lambda: [each.metadata.name for each in source.state().pods] == ["a", "b", "c"], "the event")
    assert len(cluster.pods.seen_lists) == 1


@pytest.mark.slow
def test_a_watch_that_is_slow_ages_no_other_watch(open_source: Open, cluster: Cluster) -> None:
    cluster.nodeslos.watches += [line_of_a_watch] * 1000
    source = open_source(msgspec.structs.replace(PACE, watch_s=1, grace_s=0.1, answer_s=10.0))
    until(lambda: len(cluster.nodeslos.seen_watches) >= 3, "cut twice")
    until(lambda: source.state().synced_at_ns and len(source.state().pods) == 2, "the pods")
    first_ns = source.state().synced_at_ns
    until(lambda: source.state().synced_at_ns > first_ns, "a sign of life")


@pytest.mark.parametrize("reply", ANSWERS)
def test_an_eviction_ends_in_its_time_and_its_outcome_is_unknown(
    reply: Reply, server: Server, actions: KubeActions
) -> None:
    server.on(EVICTION, reply)
    with pytest.raises(KubeError, match="outcome is unknown") as caught:
        actions.evict("be", "a", "uid-a", timeout_s=0.4)
    assert caught.value.retry
    server.on(EVICTION, gives(201, {}))
    actions.evict("be", "a", "uid-a", timeout_s=patience(10))  # the wire that was cut is not used again


def test_a_connection_that_was_used_before_is_cut_as_any(server: Server, actions: KubeActions) -> None:
    server.on(EVICTION, gives(201, {}))
    actions.evict("be", "a", "uid-a", timeout_s=patience(10))
    server.on(EVICTION, header)
    with pytest.raises(KubeError, match="outcome is unknown"):
        actions.evict("be", "a", "uid-a", timeout_s=0.4)
    assert server.connections == 1


def test_one_exchange_that_is_cut_leaves_the_others_alone(server: Server, actions: KubeActions) -> None:
    waited = threading.Event()

    def late(exchange: Exchange) -> None:
        waited.wait(30)
        exchange.answer(201, {})

    server.on(EVICTION, header)
    server.on("/api/v1/namespaces/be/pods/b/eviction", late)
    failures: list[BaseException] = []

    def other() -> None:
        try:
            actions.evict("be", "b", "uid-b", timeout_s=patience(30))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    until(lambda: server.requests, "the request that waits")
    with pytest.raises(KubeError, match="outcome is unknown"):
        actions.evict("be", "a", "uid-a", timeout_s=0.4)
    waited.set()
    thread.join()
    assert failures == []


def test_a_tls_handshake_that_trickles_ends_in_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def shake() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(b"\x16\x03\x03\x3f\xff")  # the head of a record of 16 KiB
                try:
                    while not over.wait(EVERY_S):
                        accepted.sendall(b"\x02")
                except OSError:
                    return

        thread = threading.Thread(target=shake)
        thread.start()
        pool = urllib3.PoolManager(ssl_context=ssl.create_default_context())
        transport = Transport(f"https://127.0.0.1:{listener.getsockname()[1]}", pool, dict)
        with pytest.raises(KubeError):
            transport.get("/", verb="list", resource="pods", timeout_s=0.4)
        over.set()
        thread.join()
        transport.close()


def test_a_short_answer_in_pieces_is_taken(server: Server, actions: KubeActions) -> None:
    def pieces(exchange: Exchange) -> None:
        answer = json.dumps(listing([], 1)).encode()
        exchange.head(201, Content_Length=str(len(answer)))
        for byte in answer:
            exchange.raw(bytes([byte]))

    server.on(EVICTION, pieces)
    for _ in range(20):
        actions.evict("be", "a", "uid-a", timeout_s=patience(10))
    assert server.connections == 1
