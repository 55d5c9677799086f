"""What holds for every decision with all three memory features on."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.credit import candidate_credit
from koordebpf.policy.decide import decide
from koordebpf.policy.plan import Plan
from koordebpf.slo.pods.eviction import allows_eviction
from koordebpf.slo.strategies.resource_threshold import allocatable_priority
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import FINISHED_PHASES, Frame, NodeView
from koordebpf.units import MIB
from tests.support.values.builders import frame, pod, read_back

NAMES = ("BEMemoryEvict", "MemoryAllocatableEvict", "MemoryEvict")
RESOURCES = ("memory", "kubernetes.io/batch-memory", "kubernetes.io/mid-memory")


_IS_ON = st.sampled_from([True, True, True, True, False])


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Return a frame; most are short of memory that it takes one or more of several plain pods to free."""
    is_short = draw(st.sampled_from([True, True, True, False]))
    plain = [
        pod(
            f"plain-{index}",
            uid=f"plain-{index}",
            anon=draw(st.integers(10, 120)),
            priority=draw(st.sampled_from([5000, 5500])),
            labels={"koordinator.sh/eviction-enabled": "true"},
            requests={"kubernetes.io/batch-memory": f"{draw(st.integers(50, 300))}Mi"},
        )
        for index in range(draw(st.integers(3, 6)) if is_short else 0)
    ]
    pods = plain + [
        pod(
            draw(st.sampled_from(["a", "b", "hog"])),
            uid=f"uid-{index}",
            anon=draw(st.integers(0, 40 if is_short else 300)),
            priority=draw(st.none() | st.sampled_from([0, 120, 3500, 5000, 5500, 5500, 7500, 9500, 2_000_000_000])),
            qos=draw(st.sampled_from(["BE", "BE", "LS", "LSR", None])),
            kube_qos=draw(st.sampled_from(["BestEffort", "Burstable"])),
            phase=draw(st.sampled_from(["Running", "Running", "Running", "Pending", "Succeeded"])),
            terminating=draw(st.integers(0, 9)) == 0,
            policy=draw(st.sampled_from([None, None, None, '["MemoryEvict"]', '["MemoryAllocatableEvict"]'])),
            measured=draw(st.integers(0, 9)) > 0,
            labels=draw(
                st.sampled_from(
                    [{}, {"koordinator.sh/eviction-enabled": "true"}, {"koordinator.sh/eviction-enabled": "True"}]
                )
            )
            | draw(st.sampled_from([{}, {"koordinator.sh/priority": "7"}, {"koordinator.sh/priority": "x"}])),
            own_priority=draw(st.none() | st.sampled_from(["-1", "0", "5", "?"])),
            requests={name: f"{draw(st.integers(0, 300))}Mi" for name in draw(st.sets(st.sampled_from(RESOURCES)))},
        )
        for index in range(draw(st.integers(0, 5 if is_short else 10)))
    ]
    strategy = {"enable": True, "memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": draw(st.integers(0, 79))}
    if is_short or draw(st.booleans()):
        strategy["evictEnabledPriorityThreshold"] = draw(st.sampled_from([0, 5500, 7999, 2_147_483_647]))
    if is_short or draw(st.booleans()):
        strategy["allocatableEvictPriorityThreshold"] = draw(st.sampled_from([0, 5500, 7999]))
    return frame(
        pods,
        used=draw(st.integers(850, 1000) if is_short else st.integers(700, 1000)),
        threshold=strategy,
        gates={name: draw(_IS_ON) if is_short else draw(st.booleans()) for name in NAMES},
        allocatable={name: f"{draw(st.integers(0, 900))}Mi" for name in draw(st.sets(st.sampled_from(RESOURCES)))},
        executor=draw(st.sampled_from(["api", "cgroup"])),
    )


def both(recorded: Frame) -> tuple[NodeView, Plan]:
    view = view_of_frame(recorded)
    return view, decide(view)


@given(frames())
def test_the_same_frame_gives_the_same_plan(recorded):
    _, plan = both(recorded)
    again = decide(view_of_frame(decode_frame(encode_frame(recorded), "frame")))
    assert plan == again
    assert read_back(plan) == plan


@given(frames())
def test_no_pod_is_evicted_twice_and_only_for_a_feature_that_is_on(recorded):
    view, plan = both(recorded)
    going = Counter(victim.candidate.uid for victim in plan.victims)
    assert set(going.values()) <= {1}
    names = [feature.verdict.feature for feature in plan.features]
    assert names == [name for name in NAMES if name == "BEMemoryEvict" or view.feature_gates[name]]
    for feature in plan.features:
        assert not feature.victims or view.feature_gates[feature.verdict.feature]


@given(frames())
def test_no_pod_above_the_configured_priority_is_evicted_and_none_that_did_not_agree(recorded):
    view, plan = both(recorded)
    pods = {each.uid: each for each in view.pods}
    highest = {
        "MemoryAllocatableEvict": allocatable_priority(view.strategy),
        "MemoryEvict": view.strategy.evictEnabledPriorityThreshold,
    }
    for feature in plan.features:
        name = feature.verdict.feature
        for victim in feature.victims:
            chosen = pods[victim.candidate.uid]
            assert (chosen.priority or 0) < 2_000_000_000
            assert not chosen.is_terminating
            assert chosen.phase not in FINISHED_PHASES
            assert allows_eviction(chosen.eviction_policy, name)
            if name == "BEMemoryEvict":
                assert chosen.koord_qos == "BE"
            else:
                assert chosen.terms.is_enabled
                assert chosen.terms.priority <= highest[name]
            assert f"feature {name}," in victim.message


@given(frames())
def test_no_victim_is_needless_or_useless(recorded):
    _, plan = both(recorded)
    earlier = []
    for feature in plan.features:
        victims = [victim.candidate for victim in feature.victims]
        needs = {need.dimension: need.need for need in feature.verdict.needs}
        for victim in victims:
            assert any(candidate_credit(victim, resource) > 0 for resource in needs)
        if feature.verdict.fires and not feature.balance.missing:
            # What earlier features take and what leaves anyway stand for themselves; each of these is needed beside.
            for spared in victims:
                rest = [each for each in [*earlier, *victims] if each is not spared]
                released = {name: sum(candidate_credit(each, name) for each in rest) for name in needs}
                pending = feature.balance.pending if len(needs) == 1 else 0
                assert any(released[name] + pending < need for name, need in needs.items())
        earlier += victims


@given(frames(), st.integers(0, 200))
def test_more_use_never_frees_less(recorded, more):
    def freed(used_bytes: int) -> int:
        measured = replace(recorded.measured, node=replace(recorded.measured.node, used_bytes=used_bytes))
        gates = {"MemoryEvict": True}
        plan = decide(view_of_frame(replace(recorded, measured=measured, featureGates=gates)))
        return sum(feature.balance.credit for feature in plan.features)

    used = recorded.measured.node.used_bytes
    assert freed(used + more * MIB) >= freed(used)


@settings(max_examples=50)
@given(frames(), st.randoms(use_true_random=False))
def test_the_order_of_the_list_changes_nothing(recorded, random):
    _, plan = both(recorded)
    pods = list(recorded.pods)
    random.shuffle(pods)
    _, again = both(replace(recorded, pods=tuple(pods)))
    assert [feature.candidates for feature in again.features] == [feature.candidates for feature in plan.features]
    assert again.victims == plan.victims
