"""MemoryEvict as stories: pods go by their priority, whatever their QoS class."""

from __future__ import annotations

import pytest

from koordebpf.units import MIB
from tests.support.values.builders import PodAndMeasure, frame, in_flight, names, plan_of, pod, why_not

ENABLED = {"koordinator.sh/eviction-enabled": "true"}
STRATEGY = {
    "enable": True,
    "memoryEvictThresholdPercent": 80,
    "memoryEvictLowerPercent": 70,
    "evictEnabledPriorityThreshold": 7999,
}
GATES = {"MemoryEvict": True}


def mid(name: str, *, anon: int, priority: int | None = 7500, sub: str | None = None, **more: object) -> PodAndMeasure:
    labels = {**ENABLED, **({"koordinator.sh/priority": sub} if sub is not None else {})}
    return pod(name, anon=anon, qos="LS", kube_qos="Burstable", priority=priority, labels=labels, **more)  # type: ignore[arg-type]


def victims(pods: list[PodAndMeasure], **more: object) -> list[str]:
    plan = plan_of(frame(pods, used=900, threshold=STRATEGY, gates=GATES, **more))  # type: ignore[arg-type]
    assert [feature.verdict.feature for feature in plan.features] == ["BEMemoryEvict", "MemoryEvict"]
    return names(plan.features[1])


def test_the_lowest_priority_is_evicted_first_then_the_largest():
    assert victims(
        [mid("high", anon=600), mid("small", anon=150, priority=5000), mid("low", anon=160, priority=5000)]
    ) == [
        "low",
        "small",
    ]


def test_the_pods_own_words_come_before_the_priority():
    first, last = mid("first", anon=300, own_priority="-5"), mid("last", anon=300, priority=5000)
    assert victims([last, first]) == ["first"]
    assert victims([last, mid("first", anon=300, own_priority="+x")]) == ["last"]  # unreadable counts as 0


def test_the_label_priority_settles_what_the_priority_leaves_open():
    assert victims([mid("a", anon=300, sub="9"), mid("b", anon=210, sub="3")]) == ["b"]
    # Without the label the priority itself stands in its place.
    assert victims([mid("a", anon=300), mid("b", anon=210, sub="7501")]) == ["a"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"priority": 8000}, "priority"),
        ({"priority": None}, "priority"),  # LS without a value is prod: 9500
        ({"priority": 0}, "priority"),
        ({"policy": '["BEMemoryEvict"]'}, "policy"),
        ({"phase": "Succeeded"}, "finished"),
        ({"terminating": True}, "terminating"),
        ({"measured": False}, "no_cgroup"),
        ({"mirror": True}, "static"),
    ],
)
def test_who_stays_and_why(changed, code):
    stays = mid("stays", **{"anon": 300, **changed})
    plan = plan_of(frame([stays, mid("leaves", anon=250)], used=900, threshold=STRATEGY, gates=GATES))
    if code == "terminating":  # its 300 MiB come back anyway, and are enough
        assert plan.victims == ()
        return
    assert names(plan.features[1]) == ["leaves"]
    assert why_not(plan.features[1])["stays"] == code


def test_a_pod_that_does_not_let_itself_be_evicted_stays():
    stays = pod("stays", anon=300, qos="LS", kube_qos="Burstable", priority=5000)
    plan = plan_of(frame([stays, mid("leaves", anon=250)], used=900, threshold=STRATEGY, gates=GATES))
    assert names(plan.features[1]) == ["leaves"]
    assert why_not(plan.features[1])["stays"] == "not_enabled"


def test_system_critical_pods_stay_whatever_is_configured():
    critical = mid("critical", anon=800, priority=2_000_001_000)
    strategy = {**STRATEGY, "evictEnabledPriorityThreshold": 2_147_483_647}
    plan = plan_of(frame([critical], used=900, threshold=strategy, gates=GATES))
    assert plan.victims == ()
    assert why_not(plan.features[1])["critical"] == "system_critical"


def test_it_needs_its_priority_threshold():
    without = {key: value for key, value in STRATEGY.items() if key != "evictEnabledPriorityThreshold"}
    plan = plan_of(frame([mid("a", anon=300)], used=900, threshold=without, gates=GATES))
    verdict = plan.features[1].verdict
    assert (verdict.skipped, plan.victims) == ("invalid_config", ())
    assert verdict.reason.endswith("EvictEnabledPriorityThreshold not config")


def test_what_the_best_effort_pods_release_counts_once_for_both():
    # GIVEN both features are on, 200 MiB are needed, a BE pod has 150 and two others 300 and 40
    pods = [pod("be", anon=150), mid("large", anon=300), mid("small", anon=60, priority=7000)]
    plan = plan_of(frame(pods, used=900, threshold=STRATEGY, gates={**GATES, "BEMemoryEvict": True}))
    best_effort, by_priority = plan.features
    # THEN the first takes all it can, and the second only what is left of the need
    assert names(best_effort) == ["be"]
    assert (best_effort.balance.missing, by_priority.balance.shared) == (50 * MIB, 150 * MIB)
    assert names(by_priority) == ["small"]
    assert plan.sentence.count("evicting") == 2


def test_no_pod_is_evicted_for_what_others_gave_already():
    pods = [pod("be", anon=250), mid("large", anon=300)]
    plan = plan_of(frame(pods, used=900, threshold=STRATEGY, gates={**GATES, "BEMemoryEvict": True}))
    assert names(plan.features[0]) == ["be"]
    assert plan.features[1].victims == ()
    assert plan.features[1].reason == "the victims of the features before it cover the need"


def test_a_best_effort_pod_that_is_enabled_too_is_evicted_once():
    both = pod("both", anon=150, labels=ENABLED)
    plan = plan_of(
        frame([both, mid("x", anon=90)], used=900, threshold=STRATEGY, gates={**GATES, "BEMemoryEvict": True})
    )
    assert [names(feature) for feature in plan.features] == [["both"], ["x"]]
    assert why_not(plan.features[1])["both"] == "leaving"


def test_an_evicted_pod_is_not_requested_twice():
    gone = mid("gone", anon=210)
    assert victims([gone, mid("other", anon=300)], pending=[in_flight(gone, credit=210, seconds_ago=5)]) == []
