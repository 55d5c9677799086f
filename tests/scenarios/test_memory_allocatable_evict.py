"""MemoryAllocatableEvict as stories: pods go when the node no longer has what they ask for."""

from __future__ import annotations

import pytest

from koordebpf.units import MIB
from tests.support.values.builders import PodAndMeasure, frame, names, plan_of, pod, why_not

ENABLED = {"koordinator.sh/eviction-enabled": "true"}
BATCH, MID = "kubernetes.io/batch-memory", "kubernetes.io/mid-memory"
STRATEGY = {"enable": True}
GATES = {"MemoryAllocatableEvict": True}


def batch(name: str, asks: str, *, priority: int | None = 5500, **more: object) -> PodAndMeasure:
    more = {"anon": 10, "labels": ENABLED, **more}
    return pod(name, priority=priority, requests={BATCH: asks}, **more)  # type: ignore[arg-type]


def feature(pods: list[PodAndMeasure], allocatable: dict[str, str] | None, **more: object):
    more = {"threshold": STRATEGY, **more}
    plan = plan_of(frame(pods, used=100, gates=GATES, allocatable=allocatable, **more))  # type: ignore[arg-type]
    return plan.features[1]


def test_within_110_percent_no_pod_is_evicted_and_above_it_enough_to_reach_100():
    pods = [batch(f"b{n}", "100Mi") for n in range(11)]
    assert feature(pods, {BATCH: "1000Mi"}).victims == ()
    round_ = feature([*pods, batch("b11", "1Mi")], {BATCH: "1000Mi"})
    assert round_.balance.need == 101 * MIB
    assert names(round_) == ["b9", "b8"]  # the largest request first, names descending; 1 Mi alone would not do
    assert round_.verdict.reason == (
        "kubernetes.io/batch-memory requested at 110 % > 110 % of allocatable, need 101 MiB"
    )


@pytest.mark.parametrize("allocatable", [{}, {BATCH: "0"}])
def test_all_go_when_nothing_is_allocatable_any_more(allocatable):
    round_ = feature([batch("a", "300Mi"), batch("b", "200Mi")], allocatable)
    assert round_.balance.need == 500 * MIB
    assert names(round_) == ["a", "b"]
    assert "none is allocatable" in round_.verdict.reason


def test_the_order_is_priority_then_the_size_of_the_request():
    pods = [batch("large", "600Mi"), batch("low", "100Mi", priority=5000), batch("small", "500Mi")]
    assert names(feature(pods, {BATCH: "1000Mi"})) == ["large"]  # low alone is not enough, and with large not needed


def test_a_pod_that_asks_for_another_resource_does_not_go_for_this_one():
    # GIVEN a shortage of mid-memory; Koordinator would evict the batch pods first and count nothing for them
    mid = pod("mid", priority=7500, qos="LS", kube_qos="Burstable", requests={MID: "300Mi"}, labels=ENABLED)
    strategy = {"enable": True, "allocatableEvictPriorityThreshold": 7999}
    round_ = feature([batch("batch", "100Mi"), mid], {BATCH: "1Gi", MID: "100Mi"}, threshold=strategy)
    assert names(round_) == ["mid"]


def test_without_a_threshold_the_top_of_batch_is_the_highest():
    mid = pod("mid", priority=7500, qos="LS", kube_qos="Burstable", requests={MID: "300Mi"}, labels=ENABLED)
    round_ = feature([mid], {})
    assert (round_.victims, round_.verdict.reason) == ((), "no pod in reach asks for memory")


def test_two_shortages_are_met_by_their_own_pods():
    mid = pod("mid", priority=7500, qos="LS", kube_qos="Burstable", requests={MID: "300Mi"}, labels=ENABLED)
    strategy = {"enable": True, "allocatableEvictPriorityThreshold": 7999}
    round_ = feature([batch("batch", "100Mi"), mid], {}, threshold=strategy)
    assert names(round_) == ["batch", "mid"]
    assert (round_.balance.need, round_.balance.credit, round_.balance.missing) == (400 * MIB, 400 * MIB, 0)


def test_native_memory_of_low_priority_pods_counts_and_is_credited():
    # GIVEN pods outside the bands, as a plain priority of 120 gives them
    plain = pod("plain", priority=120, qos=None, kube_qos="Burstable", requests={"memory": "2Gi"}, labels=ENABLED)
    round_ = feature([plain], {"memory": "1000Mi"})
    assert names(round_) == ["plain"]
    assert round_.balance.need == 1048 * MIB


def test_finished_pods_ask_for_nothing():
    round_ = feature([batch("done", "900Mi", phase="Succeeded"), batch("runs", "900Mi")], {BATCH: "1000Mi"})
    assert round_.victims == ()


def test_a_pod_whose_usage_is_not_measured_may_go():
    assert names(feature([batch("a", "300Mi", measured=False)], {})) == ["a"]
    assert why_not(feature([batch("a", "300Mi", measured=False)], {}, executor="cgroup"))["a"] == "no_cgroup"


def test_what_already_leaves_counts():
    round_ = feature([batch("leaves", "300Mi", terminating=True), batch("a", "900Mi")], {BATCH: "1000Mi"})
    assert (round_.victims, round_.balance.pending) == ((), 300 * MIB)


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ({"memoryAllocatableEvictThresholdPercent": -1}, "threshold percent(-1) should greater than 0"),
        (
            {"memoryAllocatableEvictThresholdPercent": 100},
            "lower percent(100) should less than threshold percent(100)",
        ),
        (
            {"allocatableEvictPriorityThreshold": 8000},
            "priorityThresholdPercent(8000) should less than 7999, koor-prod pods should not be killed",
        ),
    ],
)
def test_unusable_values_are_reported_in_koordinators_words(strategy, text):
    verdict = feature([batch("a", "300Mi")], {}, threshold={"enable": True, **strategy}).verdict
    assert verdict.skipped == "invalid_config"
    assert verdict.reason.endswith(text)


def test_a_shortage_of_requests_and_one_of_use_share_a_victim():
    strategy = {
        "enable": True,
        "memoryEvictThresholdPercent": 80,
        "memoryEvictLowerPercent": 70,
        "evictEnabledPriorityThreshold": 5999,
    }
    gates = {"BEMemoryEvict": True, "MemoryAllocatableEvict": True, "MemoryEvict": True}
    pods = [batch("a", "600Mi", anon=210), batch("b", "500Mi", anon=300)]
    plan = plan_of(frame(pods, used=900, threshold=strategy, gates=gates, allocatable={BATCH: "900Mi"}))
    used, asked, by_priority = plan.features
    assert (names(used), names(asked), names(by_priority)) == (["b"], [], [])
    assert (asked.balance.need, asked.balance.shared) == (200 * MIB, 500 * MIB)
