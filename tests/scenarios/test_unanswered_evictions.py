"""An eviction that the API server has not answered: no other pod is evicted for next to nothing meanwhile."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.policy.plan import FeaturePlan
from koordebpf.state.view import RefusedEviction
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, feature_of, frame, names, pod

NEED_MIB = 220  # of 1,000, from 1,000 to the 78 % that frames have


def chosen(*, hog: int, small: int, unanswered_s: int | None, count: int = 1) -> FeaturePlan:
    pods = [pod("hog", uid="hog", priority=5000, anon=hog)]
    pods += [pod(f"small-{at}", uid=f"small-{at}", priority=5500, anon=small) for at in range(count)]
    asked_ns = None if unanswered_s is None else NOW_NS - unanswered_s * NS_PER_S
    refused = (RefusedEviction("hog", NOW_NS + NS_PER_S, "no answer", asked_ns),)
    return feature_of(replace(frame(pods, used=1000), refused=refused))


def test_a_pod_that_brings_next_to_nothing_stays() -> None:
    found = chosen(hog=600, small=2, unanswered_s=20)
    assert names(found) == []
    assert found.reason == (
        "the eviction of spark/hog has not been answered yet, and without it too little memory would come back"
    )


@pytest.mark.parametrize(("small", "count"), [(NEED_MIB // 8 + 1, 1), (10, 3), (NEED_MIB, 1)])
def test_who_relieves_the_node_is_evicted_in_its_place(small: int, count: int) -> None:
    found = chosen(hog=600, small=small, unanswered_s=20, count=count)
    assert len(names(found)) == count


def test_the_wait_for_an_answer_ends() -> None:
    assert names(chosen(hog=600, small=2, unanswered_s=120)) == []
    assert names(chosen(hog=600, small=2, unanswered_s=121)) == ["small-0"]


def test_who_would_not_cover_the_need_either_is_not_waited_for() -> None:
    assert names(chosen(hog=NEED_MIB - 1, small=2, unanswered_s=20)) == ["small-0"]


def test_an_answer_that_says_no_keeps_no_other_pod() -> None:
    assert names(chosen(hog=600, small=2, unanswered_s=None)) == ["small-0"]
