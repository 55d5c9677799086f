"""Pods of which something cannot be read, or is not known: they alone stay, and all others are judged as ever."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.collect.cluster_view import Known
from koordebpf.kube.cache.objects import ClusterState, Container, ResourceRequirements
from tests.support.values.builders import PodAndMeasure, feature_of, frame, ls_pod, names, pod, why_not


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


@pytest.mark.parametrize("request_text", ["-1", "much", "", "1e9223372036854775808"])
def test_an_odd_request_spoils_its_pod_and_not_the_frame(request_text: str) -> None:
    odd = asking(pod("odd", anon=400), request_text)
    recorded = frame([odd, asking(ls_pod("web"), request_text), pod("hog", anon=300)], used=900)
    feature = feature_of(recorded)
    assert names(feature) == ["hog"]
    assert why_not(feature) == {"odd": "unreadable"}
    # AND the agent reads it the same way
    known = Known()
    known.learn(ClusterState(version=1, synced_at_ns=1, pods=recorded.pods))
    assert [each.name for each in known.facts] == ["odd", "web", "hog"]
    assert [each.endswith("; the pod is left alone") for each in known.problems] == [True, True]
    assert feature.excluded[0].why in known.problems[0]
