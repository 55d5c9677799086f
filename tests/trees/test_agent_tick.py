"""A whole agent, tick by tick: cgroups are directories with files, the clock is an argument, and no test is root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.decision.decide_tick import decided_again, encode_decision
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.store.sink import PlanDecided, RoundEnded, TickEnded
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S
from tests.support.ticked_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def test_below_its_threshold_it_measures_and_decides_nothing(node: Node) -> None:
    due = [node.tick(NS_PER_S) for _ in range(4)]
    assert 0 < max(due) <= NS_PER_S
    assert node.sink.take(PlanDecided) == []
    assert len(node.sink.take(TickEnded)) == 4
    (*_, last) = node.sink.take(RoundEnded)
    assert isinstance(last, RoundEnded)
    assert [each.name for each in last.view.pods] == ["hog", "calm"]
    assert [each.memory.usage_bytes for each in last.view.pods if each.memory] == [300 * MIB, 50 * MIB]


def test_a_crossing_is_decided_on_in_the_tick_that_sees_it(node: Node) -> None:
    node.tick(NS_PER_S)
    node.hold(hog=700)
    node.tick(10 * NS_PER_MS)
    (decided,) = node.sink.take(PlanDecided)
    assert isinstance(decided, PlanDecided)
    assert [victim.candidate.name for victim in decided.plan.victims] == ["hog"]
    assert [outcome.result.value for outcome in decided.outcomes] == ["dry_run"]
    assert decided.decided_ns == node.clock.ns
    assert node.sink.take(OutcomeArrived) == []  # of a dry run nothing comes later


def test_the_same_shortage_is_decided_on_again_after_the_cool_time_only(node: Node) -> None:
    node.tick(NS_PER_S)
    node.hold(hog=700)
    for _ in range(5):
        node.tick(100 * NS_PER_MS)
    assert len(node.sink.take(PlanDecided)) == 1
    node.tick(NS_PER_S)
    assert len(node.sink.take(PlanDecided)) == 2


def test_a_changed_nodeslo_is_decided_on_in_the_tick_that_sees_it(node: Node) -> None:
    # GIVEN a node whose pods were measured just now
    node.tick(NS_PER_S)
    rounds = len(node.sink.take(RoundEnded))
    # WHEN a pod's labels change, no round is made for it; WHEN the NodeSLO does, one is
    seen = []
    for change in ({"threshold_percent": 70, "team": "a"}, {"threshold_percent": 71, "team": "a"}):
        node.list_pods(**change)
        node.tick(10 * NS_PER_MS)
        seen.append(len(node.sink.take(RoundEnded)) - rounds)
    # THEN
    assert seen == [0, 1]


def test_it_looks_sooner_the_nearer_the_threshold_is(node: Node) -> None:
    node.tick(NS_PER_S)
    due = []
    for mib in (300, 450, 600, 640):
        node.hold(hog=mib)
        due.append(node.tick(200 * NS_PER_MS))
    assert due == sorted(due, reverse=True)
    assert due[-1] < due[0] / 4


def test_every_round_is_decided_again_from_its_frame(node: Node) -> None:
    for mib in (300, 640, 700, 750, 300):
        node.hold(hog=mib)
        node.tick(NS_PER_S)
    rounds = [event for event in node.sink.events if isinstance(event, RoundEnded)]
    assert len(rounds) >= 5
    assert any(each.decision.carried for each in rounds)
    for each in rounds:
        assert encode_decision(decided_again(each.tick)) == encode_decision(each.decision)


def test_pods_that_are_gone_are_forgotten(node: Node, tmp_path: Path) -> None:
    node.tick(NS_PER_S)
    items = json.loads((tmp_path / "pods.json").read_text())
    items["items"] = [each for each in items["items"] if each["metadata"]["name"] != "hog"]
    (tmp_path / "new.json").write_text(json.dumps(items))
    (tmp_path / "new.json").rename(tmp_path / "pods.json")
    for _ in range(40):
        node.tick(NS_PER_S)
        (*_, last) = node.sink.take(RoundEnded)
        assert isinstance(last, RoundEnded)
        if [each.name for each in last.view.pods] == ["calm"]:
            return
    pytest.fail("the pod is still there")
