"""Pods of which something cannot be read, or is not known: all others are judged as ever."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.kube.cache.objects import ClusterState, Container, ResourceRequirements
from koordebpf.policy.decide import decide
from tests.support.values.builders import PodAndMeasure, feature_of, frame, ls_pod, names, plan_of, pod, why_not
from tests.support.values.cpu_nodes import node


def asking(each: PodAndMeasure, request: str) -> PodAndMeasure:
    odd = Container(name="main", resources=ResourceRequirements({"memory": request, "cpu": request}))
    return replace(each, pod=replace(each.pod, spec=replace(each.pod.spec, containers=[odd])))


@pytest.mark.parametrize("phase", ["Unknown", "", "Evicting"])
def test_whose_phase_is_not_known_is_no_candidate(phase: str) -> None:
    feature = feature_of(frame([pod("odd", anon=400, phase=phase), pod("hog", anon=300)], used=900))
    assert names(feature) == ["hog"]
    assert why_not(feature) == {"odd": "phase_unknown"}
    (excluded,) = feature.excluded
    assert excluded.why == f"its phase is {phase or 'not set'}: it may not run"


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_whose_phase_is_one_of_life_is_a_candidate(phase: str) -> None:
    assert names(feature_of(frame([pod("hog", anon=300, phase=phase)], used=900))) == ["hog"]


ODD = ["-1", "much", "", "1e9223372036854775808"]


@pytest.mark.parametrize("request_text", ODD)
def test_an_odd_request_spoils_its_pod_and_not_the_frame(request_text: str) -> None:
    odd = asking(pod("odd", anon=100), request_text)
    recorded = frame([odd, asking(ls_pod("web"), request_text), pod("hog", anon=300)], used=900)
    assert names(feature_of(recorded)) == ["hog"]
    # AND the agent names the pods
    known = ClusterView()
    known.learn(ClusterState(version=1, synced_at_ns=1, pods=recorded.pods))
    assert [each.name for each in known.facts] == ["odd", "web", "hog"]
    counts = "; the pod counts as one that requests nothing"
    assert [each.endswith(counts) for each in known.problems] == [True, True]


BY_USE = {"enable": True, "memoryEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 7999}


@pytest.mark.parametrize("request_text", [*ODD, "10E", "64E+0006", "1e-1002"])
@pytest.mark.parametrize("feature", ["BEMemoryEvict", "MemoryEvict"])
def test_no_request_keeps_its_pod_from_being_evicted_for_what_it_uses(feature: str, request_text: str) -> None:
    labels = {"koordinator.sh/eviction-enabled": "true"}
    pods = [asking(pod("odd", anon=400, labels=labels), request_text), pod("hog", anon=300, labels=labels)]
    gates = {"BEMemoryEvict": feature == "BEMemoryEvict", "MemoryEvict": feature == "MemoryEvict"}
    plan = plan_of(frame(pods, used=900, threshold=BY_USE, gates=gates))
    assert [names(each) for each in plan.features if each.verdict.feature == feature] == [["odd"]]


ALLOCATABLE = ("MemoryAllocatableEvict", "CPUAllocatableEvict")


@pytest.mark.parametrize("request_text", ["10E", "9223372036854775808", "1e2000000000", "18446744073709551616", "16E"])
@pytest.mark.parametrize("resource", ["memory", "cpu"])
def test_a_number_that_no_node_has_and_the_scheduler_takes_for_0_evicts_no_pod(
    resource: str, request_text: str
) -> None:
    labels = {"koordinator.sh/eviction-enabled": "true"}
    pods = [
        pod("web", qos="LS", priority=7400, requests={resource: "1"}, labels=labels),
        pod("odd", qos="LS", priority=7400, requests={resource: request_text}),
    ]
    strategy = {"allocatableEvictPriorityThreshold": 7999}
    view = node(pods=pods, allocatable={resource: "1"}, strategy=strategy, gates=dict.fromkeys(ALLOCATABLE, True))
    judged = [each.verdict for each in decide(view).features if each.verdict.feature in ALLOCATABLE]
    assert [(each.skipped, each.fires) for each in judged] == [(None, False)] * 2


@pytest.mark.parametrize("request_text", ODD)
def test_a_pod_whose_request_cannot_be_read_is_not_evicted_for_what_others_request(request_text: str) -> None:
    labels = {"koordinator.sh/eviction-enabled": "true"}
    first = asking(pod("odd", priority=5000, labels=labels), request_text)
    large = pod("large", priority=5500, labels=labels, requests={"kubernetes.io/batch-memory": "300Mi"})
    gates = {"MemoryAllocatableEvict": True}
    plan = plan_of(frame([first, large], used=100, gates=gates, allocatable={"kubernetes.io/batch-memory": "200Mi"}))
    assert names(plan.features[1]) == ["large"]
