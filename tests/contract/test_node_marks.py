"""The marks of a Node on a server that merges patches as the API server does, and with others who write too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.kube.clients.taints import CONDITION_TYPE, NodeMarks
from koordebpf.kube.http.transport import open_cluster
from tests.contract.apiserver import Server, gives, status
from tests.contract.node_store import OTHERS, OURS, PATH, READY, NodeStore

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def store(server: Server) -> NodeStore:
    return NodeStore(server)


@pytest.fixture
def marks(kubeconfig: Path) -> Iterator[NodeMarks]:
    marks = NodeMarks(open_cluster(kubeconfig), "n1")
    yield marks
    marks.close()


def put(marks: NodeMarks, mark: Any) -> bool:
    return marks.put(mark, at=AT, timeout_s=20.0)


def remove(marks: NodeMarks) -> bool:
    return marks.remove(timeout_s=20.0)


def test_the_taint_comes_beside_those_of_others_and_is_removed_again(store: NodeStore, marks: NodeMarks) -> None:
    assert put(marks, "taint")
    assert store.taints == [*OTHERS, OURS]
    assert not put(marks, "taint")
    assert remove(marks)
    assert store.taints == OTHERS
    assert not remove(marks)
    assert len(store.patches) == 2
    assert store.conditions == [READY]


def test_on_a_node_without_taints_none_is_left(store: NodeStore, marks: NodeMarks) -> None:
    del store.node["spec"]["taints"]
    assert put(marks, "taint")
    assert store.taints == [OURS]
    assert remove(marks)
    assert "taints" not in store.node["spec"]


def test_a_taint_that_another_adds_meanwhile_is_not_lost(store: NodeStore, marks: NodeMarks) -> None:
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}

    def another_writes() -> None:
        store.after_a_read = lambda: None
        store.taints.append(cordon)
        store.touch()

    store.after_a_read = another_writes
    with pytest.raises(KubeConflict):
        put(marks, "taint")
    assert store.taints == [*OTHERS, cordon]
    assert put(marks, "taint")
    assert store.taints == [*OTHERS, cordon, OURS]


def test_the_condition_comes_beside_the_kubelets_and_is_removed_again(store: NodeStore, marks: NodeMarks) -> None:
    assert put(marks, "condition")
    ready, ours = store.conditions
    assert ready == READY
    assert (ours["type"], ours["status"], ours["reason"]) == (CONDITION_TYPE, "True", "MemoryEviction")
    assert ours["lastTransitionTime"] == ours["lastHeartbeatTime"] == "2026-01-02T03:04:05Z"
    assert not put(marks, "condition")
    assert remove(marks)
    assert store.conditions == [READY]
    assert store.taints == OTHERS


def test_marks_of_both_kinds_that_were_left_are_removed(store: NodeStore, marks: NodeMarks) -> None:
    put(marks, "condition")
    put(marks, "taint")
    assert remove(marks)
    assert (store.conditions, store.taints) == ([READY], OTHERS)


@pytest.mark.parametrize(
    ("mark", "path", "resource"), [("taint", PATH, "nodes"), ("condition", f"{PATH}/status", "nodes/status")]
)
def test_403_names_verb_and_resource(
    mark: str, path: str, resource: str, server: Server, store: NodeStore, marks: NodeMarks
) -> None:
    no = gives(403, status(403, "Forbidden", "no", name="n1", kind="nodes"))
    server.on(path, lambda exchange: store.answer(exchange) if exchange.request.method == "GET" else no(exchange))
    with pytest.raises(KubeDenied, match=f"needs RBAC verb patch on {resource}") as caught:
        put(marks, mark)
    assert (caught.value.verb, caught.value.resource) == ("patch", resource)
    assert len([request for request in server.requests if request.method == "PATCH"]) == 1


def test_a_node_that_is_not_there_is_gone(server: Server, marks: NodeMarks) -> None:
    with pytest.raises(KubeGone):
        put(marks, "taint")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"spec": {}}', b'{"metadata": {"resourceVersion": 7}}'])
def test_an_answer_that_is_no_node_is_refused(body: bytes, server: Server, marks: NodeMarks) -> None:
    server.on(PATH, gives(200, body))
    with pytest.raises(KubeError, match="the answer is not a Node"):
        remove(marks)
