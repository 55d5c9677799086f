"""A whole agent, and a tenant who resizes its pod: what the kubelet has not granted evicts no pod."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.policy.plan import FeaturePlan
from koordebpf.store.sink import PlanDecided, RoundEnded
from koordebpf.units import MIB, NS_PER_S
from tests.support.ticked_node import Node, nodeslo, pod_object

FEATURE = "MemoryAllocatableEvict"
OTHERS = ("BEMemoryEvict", "MemoryEvict", "StallEvict", "CPUAllocatableEvict", "CPUEvict", "BECPUEvict")
GRANTED = "300Mi"
NOT_ANSWERED: list[dict[str, str]] = []
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]
THRESHOLD: dict[str, object] = {
    "enable": True,
    "allocatableEvictPriorityThreshold": 5999,
    "memoryAllocatableEvictThresholdPercent": 100,
    "memoryAllocatableEvictLowerPercent": 95,
}


def _pod(name: str, asked: str, allocated: str, conditions: list[dict[str, str]]) -> dict[str, object]:
    requests = {"requests": {"memory": asked}}
    status = {
        "name": "main",
        "allocatedResources": {"memory": allocated},
        "resources": {"requests": {"memory": allocated}},
    }
    labels = {"koordinator.sh/priority-class": "koord-prod", "koordinator.sh/eviction-enabled": "true"}
    return pod_object(
        name,
        labels,
        {
            "priority": 3500 if name == "calm" else 3000,
            "containers": [{"name": "main", "resources": requests}],
        },
        {
            "phase": "Running",
            "qosClass": "Burstable",
            "conditions": conditions,
            "containerStatuses": [status],
        },
    )


def _objects(asked: str, allocated: str, conditions: list[dict[str, str]]) -> list[dict[str, object]]:
    of_node = {"memory": "1000Mi", "cpu": "4"}
    return [
        _pod("hog", GRANTED, GRANTED, []),
        _pod("calm", asked, allocated, conditions),
        nodeslo(THRESHOLD),
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node"},
            "status": {"allocatable": of_node, "capacity": of_node},
        },
    ]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, gates={**dict.fromkeys(OTHERS, False), FEATURE: True})
    made.list_objects(_objects(GRANTED, GRANTED, []))
    yield made
    made.close()


def ticked_until(node: Node, name: str, mib: int) -> FeaturePlan:
    """Tick until this pod has so much granted; return what was decided by it."""
    until = time.monotonic() + 20
    while True:
        node.tick(NS_PER_S)
        last = node.sink.take(RoundEnded)[-1]
        assert isinstance(last, RoundEnded)
        if granted_mib(last).get(name) == mib and last.decision is not None:
            return next(each for each in last.decision.plan.features if each.verdict.feature == FEATURE)
        assert time.monotonic() < until, granted_mib(last)
        time.sleep(0.05)


def granted_mib(ended: RoundEnded) -> dict[str, int]:
    return {each.name: each.terms.memory_request_bytes // MIB for each in ended.view.pods}


@pytest.mark.parametrize("conditions", [NOT_ANSWERED, DEFERRED])
def test_no_pod_is_evicted_for_what_is_asked_and_not_granted(node: Node, conditions: list[dict[str, str]]) -> None:
    assert ticked_until(node, "calm", 300).verdict.skipped is None
    # WHEN a tenant asks for 64Gi on a node of 1000Mi, and the other pod changes so that the list is seen to be read
    objects = _objects("64Gi", GRANTED, conditions)
    objects[0] = _pod("hog", "301Mi", "301Mi", [])
    node.list_objects(objects)
    plan = ticked_until(node, "hog", 301)
    for _ in range(3):
        node.tick(NS_PER_S)
    # THEN it counts as before, and no pod is evicted
    last = node.sink.take(RoundEnded)[-1]
    assert isinstance(last, RoundEnded)
    assert granted_mib(last) == {"hog": 301, "calm": 300}
    assert (plan.verdict.skipped, plan.verdict.fires, plan.victims) == (None, False, ())
    assert node.sink.take(PlanDecided) == []


def test_what_is_granted_counts_in_the_round_that_sees_it(node: Node) -> None:
    ticked_until(node, "calm", 300)
    node.list_objects(_objects("900Mi", "900Mi", []))
    plan = ticked_until(node, "calm", 900)
    assert plan.verdict.fires
    assert [each.candidate.name for each in plan.victims] == ["hog"]
