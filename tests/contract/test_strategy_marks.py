"""A strategy that wants its node marked: from its decision, through the agent's round, to the API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.act.taint import NodeMarker
from koordebpf.agent.taint import NodeMarking
from koordebpf.kube.clients.taints import CONDITION_TYPE, Mark, NodeMarks
from koordebpf.kube.http.transport import open_cluster
from koordebpf.policy.strategy import GATE_OFF
from koordebpf.policy.taint import NodeMarkSettings
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.contract.apiserver import Server, let_it_spin, until
from tests.contract.node_store import OTHERS, OURS, READY, NodeStore
from tests.support.asked_strategy import AskedStrategy, ask_alone
from tests.support.ticked_node import Node

HOT = {"conditions": ("the disk is hot",)}
Start = Callable[[Mark], Node]


@pytest.fixture
def store(server: Server) -> NodeStore:
    return NodeStore(server)


@pytest.fixture
def strategy() -> AskedStrategy:
    return AskedStrategy(needs_cpu=True)


@pytest.fixture
def start(
    tmp_path: Path, kubeconfig: Path, store: NodeStore, strategy: AskedStrategy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    made: list[tuple[Node, NodeMarker]] = []

    def _start(mark: Mark) -> Node:
        parts, _ = ask_alone(monkeypatch, strategy)
        marker = NodeMarker(NodeMarks(open_cluster(kubeconfig), "n1"), mark)
        marking = NodeMarking(NodeMarkSettings(type=mark), marker)
        node = Node(tmp_path, marking=marking, **parts)
        made.append((node, marker))
        node.tick(0)
        return node

    yield _start
    for node, marker in made:
        node.close()
        marker.close()


def test_the_taint_is_there_as_long_as_the_strategy_has_a_condition(
    start: Start, store: NodeStore, strategy: AskedStrategy
) -> None:
    node = start("taint")
    strategy.answer = HOT
    node.tick(NS_PER_S)
    until(lambda: store.taints == [*OTHERS, OURS], "the taint")
    node.tick(NS_PER_S)
    strategy.answer = {}
    node.tick(NS_PER_S)
    until(lambda: store.taints == OTHERS, "no taint")
    assert len(store.patches) == 2


def test_the_condition_is_set_and_removed_too(start: Start, store: NodeStore, strategy: AskedStrategy) -> None:
    strategy.answer = HOT
    node = start("condition")
    until(lambda: [each["type"] for each in store.conditions] == ["Ready", CONDITION_TYPE], "the condition")
    strategy.answer = {}
    node.tick(NS_PER_S)
    until(lambda: store.conditions == [READY], "no condition")
    assert store.taints == OTHERS


def test_rounds_that_did_not_judge_it_leave_the_mark(start: Start, store: NodeStore, strategy: AskedStrategy) -> None:
    node = start("taint")
    strategy.answer = HOT
    node.tick(NS_PER_S)
    until(lambda: store.taints == [*OTHERS, OURS], "the taint")
    # WHEN a round of memory alone does not ask it, and one that asks it cannot judge
    asked = len(strategy.views)
    node.hold(hog=700)
    node.tick(10 * NS_PER_MS)
    assert len(strategy.views) == asked
    node.hold(hog=300)
    let_it_spin()
    strategy.answer = {"skipped": "first_sample"}
    node.tick(NS_PER_S)
    assert len(strategy.views) == asked + 1
    let_it_spin()
    # THEN the node stays marked until it is judged, or its gate is off
    assert store.taints == [*OTHERS, OURS]
    strategy.answer = {"skipped": GATE_OFF}
    node.tick(NS_PER_S)
    until(lambda: store.taints == OTHERS, "no taint")
    assert len(store.patches) == 2
