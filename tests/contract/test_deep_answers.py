"""Answers that are nested deeper than can be decoded: the same errors as of other malformed answers, and no end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from koordebpf.errors import KubeBusy, KubeError
from koordebpf.kube.clients.lease import LeaseClient, LeaseSpec
from koordebpf.kube.clients.nodeslos import NODESLOS_PATH, NodeSLO, NodeSLOMeta, NodeSLOWriter
from koordebpf.kube.clients.taints import NodeMarks
from koordebpf.kube.http.transport import Transport, open_cluster
from koordebpf.kube.sources.api import ApiSource
from tests.contract.apiserver import Cluster, Exchange, Server, gives, pod, until
from tests.contract.sources import Open

DEEP = b"[" * 100_000 + b"]" * 100_000
WHY = "it is nested too deep"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
Ask = Callable[[Transport], object]


@pytest.fixture
def transport(kubeconfig: Path) -> Iterator[Transport]:
    transport = open_cluster(kubeconfig)
    yield transport
    transport.close()


@pytest.fixture(autouse=True)
def _nothing_is_unexpected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def names(source: ApiSource) -> list[str]:
    return sorted(each.metadata.name for each in source.state().pods)


@pytest.mark.parametrize(
    "body",
    [b'{"metadata":{"resourceVersion":"100"},"items":[' + DEEP + b"]}", b'{"x":' + DEEP + b',"items":[]}'],
    ids=["item", "unknown field"],
)
def test_of_a_list_the_problem_names_what_and_why(body: bytes, open_source: Open, cluster: Cluster) -> None:
    is_well = False
    healthy = cluster.pods.reply

    def reply(exchange: Exchange) -> None:
        (healthy if is_well or exchange.request.is_watch else gives(200, body))(exchange)

    cluster.server.on(cluster.pods.path, reply)
    source = open_source()
    until(lambda: source.state().problems, "the problem")
    assert source.state().problems == (f"list pods: the answer is not a list: {WHY}",)
    is_well = True
    until(lambda: names(source) == ["a", "b"] and not source.state().problems, "the pods")


@pytest.mark.parametrize(
    "line", [b'{"type":"ADDED","object":' + DEEP + b"}", b'{"x":' + DEEP + b"}"], ids=["object", "unknown field"]
)
def test_after_an_event_of_a_watch_there_is_a_new_list(line: bytes, open_source: Open, cluster: Cluster) -> None:
    def deep_event(exchange: Exchange) -> None:
        cluster.pods.items.append(pod("c", 101))
        exchange.stream()
        exchange.chunk(line + b"\n")
        exchange.hold()

    cluster.pods.watches.append(deep_event)
    source = open_source()
    until(lambda: names(source) == ["a", "b", "c"], "what the event was about")
    assert len(cluster.pods.seen_lists) == 2
    until(lambda: source.state().problems == (), "health")


@pytest.mark.usefixtures("no_jitter")
def test_a_refusal_means_what_its_status_does(server: Server, transport: Transport) -> None:
    server.on("/api/v1/nodes/n1", gives(429, b'{"x":' + DEEP + b"}", Retry_After="7"))
    with pytest.raises(KubeBusy, match="get nodes: 429 Too Many Requests") as caught:
        transport.get("/api/v1/nodes/n1", verb="get", resource="nodes", timeout_s=20.0)
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("path", "ask", "message"),
    [
        (
            "/api/v1/nodes/n1",
            lambda transport: NodeMarks(transport, "n1").put("taint", at=datetime.now(UTC), timeout_s=20.0),
            "nodes: the answer is not a Node",
        ),
        (
            f"{LEASES}/one",
            lambda transport: LeaseClient(transport, "ns", "one").read(timeout_s=20.0),
            "leases: the answer is not a Lease",
        ),
        (
            LEASES,
            lambda transport: LeaseClient(transport, "ns", "one").create(LeaseSpec(), timeout_s=20.0),
            "leases: the answer is not a Lease",
        ),
        (
            NODESLOS_PATH,
            lambda transport: NodeSLOWriter(transport, "me").create(NodeSLO(NodeSLOMeta("n1"))),
            "create nodeslos: the answer is not a NodeSLO",
        ),
    ],
    ids=["Node", "Lease", "new Lease", "NodeSLO"],
)
def test_of_one_object_the_error_names_what_and_why(
    path: str, ask: Ask, message: str, server: Server, transport: Transport
) -> None:
    server.on(path, gives(200, b'{"metadata":{"resourceVersion":"7"},"spec":{"x":' + DEEP + b"}}"))
    with pytest.raises(KubeError) as caught:
        ask(transport)
    assert str(caught.value) == f"{message}: {WHY}"
    assert caught.value.retry
