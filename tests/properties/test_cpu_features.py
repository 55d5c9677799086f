"""What holds for every decision with the features that judge CPU, beside those that judge memory."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.policy.credit import candidate_credit
from koordebpf.policy.decide import decide
from koordebpf.policy.plan import Balance
from koordebpf.slo.pods.eviction import allows_eviction
from koordebpf.slo.strategies.resource_threshold import allocatable_priority
from koordebpf.state.amount import CPU, MEMORY
from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.view import FINISHED_PHASES, NodeView
from koordebpf.units import NS_PER_S
from tests.support.values.builders import PodAndMeasure, pod, read_back
from tests.support.values.cpu_nodes import node

FEATURES = ("BEMemoryEvict", "MemoryEvict", "BECPUEvict", "CPUAllocatableEvict", "CPUEvict")
OF_CPU = FEATURES[2:]
BATCH = "kubernetes.io/batch-cpu"
RESOURCES = ("cpu", BATCH, "kubernetes.io/mid-cpu")
amounts = st.integers(0, 40_000)
_SECONDS_KNOWN = st.sampled_from([60, 60, 60, 60, 60, 60, 20, 19, 0])  # of the 60 of the window


def is_be(each: PodAndMeasure) -> bool:
    return (each.pod.metadata.labels or {}).get(
        "koordinator.sh/qosClass"
    ) == "BE" and each.pod.status.phase == "Running"


@st.composite
def nodes(draw: st.DrawFn) -> NodeView:
    is_short = draw(st.sampled_from([True, True, True, False]))
    plain = [
        pod(
            f"plain-{index}",
            uid=f"plain-{index}",
            anon=draw(st.integers(10, 120)),
            priority=draw(st.sampled_from([5000, 5500])),
            labels={"koordinator.sh/eviction-enabled": "true"},
            requests={BATCH: str(draw(st.integers(1000, 9000)))},
        )
        for index in range(draw(st.integers(3, 5)) if is_short else 0)
    ]
    pods = plain + [
        pod(
            draw(st.sampled_from(["a", "b", "hog"])),
            uid=f"uid-{index}",
            anon=draw(st.integers(0, 300)),
            priority=draw(st.none() | st.sampled_from([0, 120, 5000, 5500, 7500, 9500, 2_000_000_000])),
            qos=draw(st.sampled_from(["BE", "BE", "LS", None])),
            kube_qos=draw(st.sampled_from(["BestEffort", "Burstable"])),
            phase=draw(st.sampled_from(["Running", "Running", "Running", "Succeeded"])),
            terminating=draw(st.integers(0, 9)) == 0,
            policy=draw(st.sampled_from([None, None, None, '["CPUEvict"]', '["BECPUEvict"]'])),
            labels=draw(st.sampled_from([{}, {"koordinator.sh/eviction-enabled": "true"}])),
            requests={BATCH: str(draw(st.integers(0, 9000)))}
            | {
                name: str(draw(st.integers(0, 9))) if name == "cpu" else str(draw(st.integers(0, 9000)))
                for name in draw(st.sets(st.sampled_from(RESOURCES)))
            },
        )
        for index in range(draw(st.integers(1, 4 if is_short else 8)))
    ]
    lower = draw(st.integers(20, 60))
    if is_short or draw(
        st.integers(0, 3)
    ):  # starving: they use what they may have, and that is little of what they ask for
        asked = sum(int(each.pod.spec.containers[0].resources.requests.get(BATCH, 0)) for each in pods if is_be(each))
        limit = max(asked * draw(st.integers(5, lower - 2 if is_short else 70)) // 100, 20)
        be_used, quota_us, averages = limit, limit * 100, [draw(amounts), limit, asked, limit]
    else:
        be_used, quota_us = draw(st.none() | amounts), draw(st.none() | st.integers(2000, 6_400_000))
        averages = [draw(st.none() | amounts) for _ in range(4)]
    view = node(
        cpus=draw(st.sampled_from([2, 16, 64])),
        pods=pods,
        node_used=draw(amounts),
        be_used=be_used,
        be_pods_used={each.pod.uid: draw(amounts) for each in pods if draw(st.integers(0, 9))},
        quota_us=quota_us,
        allocatable={name: str(draw(st.integers(0, 60))) for name in draw(st.sets(st.sampled_from(RESOURCES)))},
        window=CpuWindow(60 * NS_PER_S, (60 if is_short else draw(_SECONDS_KNOWN)) * NS_PER_S, *averages),
        strategy={
            "cpuEvictBESatisfactionLowerPercent": lower,
            "cpuEvictBESatisfactionUpperPercent": draw(st.integers(lower, 99)),
            "cpuEvictBEUsageThresholdPercent": draw(st.none() | st.integers(0, 100)),
            "cpuEvictPolicy": draw(st.sampled_from(["evictByRealLimit"] * 3 + ["evictByAllocatable"])),
            "cpuEvictThresholdPercent": draw(st.sampled_from([5, 30, 80])),
            "evictEnabledPriorityThreshold": draw(st.sampled_from([0, 5500, 7999])),
            "memoryEvictThresholdPercent": 80,
        },
        gates={name: is_short or draw(st.integers(0, 3)) > 0 for name in FEATURES},
    )  # fmt: skip
    return replace(view, used_bytes=view.capacity_bytes * draw(st.integers(50, 100)) // 100)


@given(nodes())
def test_the_same_view_gives_the_same_plan_and_it_reads_back(view):
    plan = decide(view)
    assert plan == decide(view)
    assert read_back(plan) == plan


@given(nodes())
def test_no_pod_is_evicted_twice_and_only_for_a_feature_that_is_on_and_allowed(view):
    plan = decide(view)
    pods = {each.uid: each for each in view.pods}
    assert set(Counter(victim.candidate.uid for victim in plan.victims).values()) <= {1}
    highest = {
        "CPUAllocatableEvict": allocatable_priority(view.strategy),
        "CPUEvict": view.strategy.evictEnabledPriorityThreshold,
    }
    for feature in plan.features:
        name = feature.verdict.feature
        for victim in feature.victims:
            chosen = pods[victim.candidate.uid]
            assert view.feature_gates[name]
            assert (chosen.priority or 0) < 2_000_000_000
            assert not chosen.is_terminating
            assert chosen.phase not in FINISHED_PHASES
            assert allows_eviction(chosen.eviction_policy, name)
            if name == "BECPUEvict":
                assert chosen.koord_qos == "BE"
            if name in highest:
                assert chosen.terms.is_enabled
                assert chosen.terms.priority <= highest[name]


@given(nodes())
def test_amounts_add_up_and_are_of_one_unit(view):
    for feature in decide(view).features:
        if feature.verdict.feature not in OF_CPU:
            assert feature.balance.resource == MEMORY
            continue
        assert feature.balance.resource == CPU
        assert all(need.dimension.resource == CPU for need in feature.verdict.needs)
        if not feature.verdict.fires:
            assert (feature.balance, feature.victims) == (Balance(CPU), ())
            continue
        needs = feature.verdict.amounts
        assert feature.balance.need == sum(needs.values()) > 0
        released = {
            resource: sum(candidate_credit(victim.candidate, resource) for victim in feature.victims)
            for resource in needs
        }
        assert all(any(candidate_credit(v.candidate, name) > 0 for name in needs) for v in feature.victims)
        if len(needs) == 1 and feature.victims:
            (need,), (given,) = needs.values(), released.values()
            open_need = need - feature.balance.pending - feature.balance.shared
            assert feature.balance.credit == given
            assert feature.balance.missing == max(open_need - given, 0)
            smallest = min(candidate_credit(v.candidate, next(iter(needs))) for v in feature.victims)
            assert feature.balance.missing or given - smallest < open_need  # no needless victim


@given(nodes())
def test_the_order_is_by_priority(view):
    for feature in decide(view).features:
        ranking = feature.candidates
        if feature.verdict.feature == "BECPUEvict":
            assert [each.priority or 0 for each in ranking] == sorted(each.priority or 0 for each in ranking)
        assert [each.rank for each in ranking] == list(range(1, len(ranking) + 1))
