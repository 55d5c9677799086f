"""A tenant resizes its pod to more than the node has; until the kubelet grants it nothing changes for anyone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koordebpf.policy.plan import FeaturePlan
from tests.scenarios.test_memory_allocatable_evict import ENABLED, GATES
from tests.strategies.memory_qos.test_memory_qos import LOW, MIN, decided, values
from tests.strategies.memory_qos.test_memory_qos import frame as qos_frame
from tests.strategies.memory_qos.test_memory_qos import pod as qos_pod
from tests.support.values.builders import PodAndMeasure, frame, names, plan_of, pod
from tests.support.values.memory_qos import GIB, memory
from tests.support.values.resized import resized, whole, whole_resized

STRATEGY = {
    "enable": True,
    "allocatableEvictPriorityThreshold": 5999,
    "memoryAllocatableEvictThresholdPercent": 100,
    "memoryAllocatableEvictLowerPercent": 95,
}


def guaranteed(name: str, priority: int, labels: dict[str, str]) -> PodAndMeasure:
    requests = {"memory": "1Gi"}
    return pod(name, anon=10, priority=priority, qos="LS", kube_qos="Guaranteed", requests=requests, labels=labels)


def feature(labels: dict[str, str], reason: str | None, *, is_whole: bool = False) -> FeaturePlan:
    its = guaranteed("resized", 3500, labels)
    if is_whole:
        its = msgspec.structs.replace(its, pod=whole(its.pod, memory("1Gi", "1Gi")))
    if reason is not None:
        asked: dict[str, Any] = memory("64Gi", "64Gi")
        resize = whole_resized if is_whole else resized
        its = msgspec.structs.replace(its, pod=resize(its.pod, asked, reason))
    pods = [its, guaranteed("innocent", 3000, ENABLED)]
    node = {"memory": "16Gi"}
    return plan_of(frame(pods, used=100, gates=GATES, threshold=STRATEGY, allocatable=node)).features[1]


@pytest.mark.parametrize("reason", ["Infeasible", "Deferred", ""])
@pytest.mark.parametrize("labels", [ENABLED, {}])
@pytest.mark.parametrize("is_whole", [False, True])
def test_no_pod_is_evicted_for_it(labels: dict[str, str], reason: str, *, is_whole: bool) -> None:
    plan = feature(labels, reason, is_whole=is_whole)
    assert names(plan) == []
    assert plan.verdict == feature(labels, None).verdict


def test_what_a_pod_has_at_its_own_level_counts_as_that_of_its_containers() -> None:
    of_containers = guaranteed("a", 3500, ENABLED)
    of_level = msgspec.structs.replace(of_containers, pod=whole(of_containers.pod, memory("1Gi", "1Gi")))
    plans = [
        plan_of(frame([each], used=100, gates=GATES, threshold=STRATEGY, allocatable={"memory": "900Mi"})).features[1]
        for each in (of_containers, of_level)
    ]
    assert names(plans[0]) == names(plans[1]) == ["a"]
    assert plans[0].verdict == plans[1].verdict


@pytest.mark.parametrize("reason", ["Infeasible", "Deferred", ""])
@pytest.mark.parametrize("is_whole", [False, True])
def test_it_protects_no_more_memory_of_the_pod_and_of_the_directories(reason: str, *, is_whole: bool) -> None:
    its, resize = (whole(qos_pod("a"), memory("1Gi", "1Gi")), whole_resized) if is_whole else (qos_pod("a"), resized)
    now = values(decided(qos_frame(resize(its, memory("64Gi", "64Gi"), reason))))
    assert now == values(decided(qos_frame(its)))
    assert sorted(value for (_, file), value in now.items() if file in (MIN, LOW)) != []
    assert all(value <= GIB for (_, file), value in now.items() if file in (MIN, LOW))
