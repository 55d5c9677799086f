"""Whom the dead man's switch would kill, and what is said of it afterwards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.decision.dead_man import (
    DeadManChoice,
    DeadManFiring,
    dead_man_choice,
    dead_man_outcome,
    dead_man_plan,
    pods_valid_until_ns,
)
from koordebpf.decision.decide_tick import TickFrame, TickSettings, decided_again, tick_view
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy, first_byte_at
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import Measured, MemoryParts, NodeMeasure, PodMeasure
from koordebpf.state.outcome import Result
from koordebpf.state.view import Frame, PastEviction
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import pod

NOW_NS = 1_000 * NS_PER_S
STRATEGY = ResourceThresholdStrategy(enable=True, memoryEvictThresholdPercent=70, memoryEvictLowerPercent=65)
BIG, SMALL = pod("big"), pod("small")
FIRING = DeadManFiring(
    heartbeat_ns=NOW_NS,
    fired_ns=NOW_NS + 600_000_000,
    stall_ns=40_000_000,
    kills=True,
    processes=2,
    signalled=2,
    refused=0,
    error=0,
)


def tick(*, used_mib: int = 100, held=(400, 10), cgroups=(1, 2), source="file", guard=None, **frame) -> TickFrame:
    """Return the round of a calm node of 1,000 MiB with two best-effort pods."""
    parts = [
        PodMeasure(uid=each.pod.metadata.uid, cgroup_id=cgroup, memory=MemoryParts(mib * MIB, 0, mib * MIB, 0, 0, 0))
        for each, mib, cgroup in zip((BIG, SMALL), held, cgroups, strict=True)
    ]
    measured = Measured(
        now_ns=NOW_NS,
        since_ns=NOW_NS - 1,
        node=NodeMeasure(scope="machine", total_bytes=1000 * MIB, used_bytes=used_mib * MIB),
        pods=tuple(parts),
    )
    values = {"strategyInForce": STRATEGY, "featureGates": {"BEMemoryEvict": True}, **frame}
    made = Frame(schema="koordebpf.frame/v3", measured=measured, pods=(BIG.pod, SMALL.pod), **values)
    facts = guard or GuardFacts(NOW_NS, source, NOW_NS - NS_PER_S)
    return TickFrame(frame=made, settings=TickSettings(), guards=facts)


def chosen(of: TickFrame) -> DeadManChoice:
    decision = decided_again(of)
    return dead_man_choice(of, tick_view(of), decision.holding)


def test_a_calm_node_has_its_first_victim_chosen():
    found = chosen(tick())
    assert found.victim is not None and found.victim.candidate.name == "big"
    assert (found.cgroup_id, found.capacity_bytes, found.threshold_bytes) == (1, 1000 * MIB, 700 * MIB)
    assert [each.name for each in found.ranking] == ["big", "small"]
    assert not decided_again(tick()).plan.victims


def test_it_is_who_would_be_evicted_first_if_the_node_were_full():
    full = decided_again(tick(used_mib=1000))
    found = chosen(tick())
    assert found.victim is not None and full.plan.victims[0].candidate.uid == found.victim.candidate.uid


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (tick(strategyInForce=ResourceThresholdStrategy(enable=False)), "no memoryEvictThresholdPercent"),
        (tick(featureGates={"BEMemoryEvict": False}), "BEMemoryEvict is off"),
        (tick(held=(0, 0)), "no candidate would give memory back"),
        (tick(cgroups=(None, None), held=(400, 10)), "no best-effort pod can be evicted"),
        (tick(guard=GuardFacts(NOW_NS, "api", None)), "no list of pods"),
        (tick(source="api", guard=GuardFacts(NOW_NS, "api", NOW_NS - 600 * NS_PER_S)), "600 s old"),
        (
            tick(evictions=tuple(PastEviction(NOW_NS - 1, f"u{n}", "n") for n in range(10))),
            "10 evictions in the last minute already",
        ),
        (tick(ownPodUid=BIG.pod.metadata.uid, held=(400, 0)), "no candidate would give memory back"),
    ],
)
def test_no_pod_is_chosen_where_none_may_be_evicted(of, why):
    found = chosen(of)
    assert found.victim is None and found.cgroup_id == 0
    assert why in found.reason


def test_a_pod_without_a_cgroup_is_passed_over():
    found = chosen(tick(cgroups=(None, 2), held=(400, 300)))
    assert found.victim is not None and found.victim.candidate.name == "small"


def test_the_choice_ends_with_the_list_of_pods_that_it_was_made_from():
    assert pods_valid_until_ns(tick()) == (1 << 63) - 1
    synced_ns = NOW_NS - 5 * NS_PER_S
    listed = tick(guard=GuardFacts(NOW_NS, "api", synced_ns))
    assert pods_valid_until_ns(listed) == synced_ns + TickSettings().guards.pods_max_age_ns


@pytest.mark.parametrize("percent", [1, 33, 70, 99, 100])
@pytest.mark.parametrize("capacity", [7 * MIB + 1, 1000 * MIB, 16_571_883_520])
def test_a_limit_that_pods_share_has_the_threshold_of_the_node(percent, capacity):
    assert (
        DeadManChoice("", threshold_bytes=first_byte_at(percent, capacity), capacity_bytes=capacity).percent == percent
    )


def test_where_pods_waited_at_a_limit_that_they_share_it_says_so():
    plan = dead_man_plan(chosen(tick()), replace(FIRING, at_limit=True))
    assert plan.sentence.endswith(" while tasks stalled 40 ms for memory at the limit that pods have together")


def test_what_it_did_is_a_plan_with_an_outcome():
    choice = chosen(tick())
    plan = dead_man_plan(choice, FIRING)
    assert plan.sentence == (
        "the dead man's switch killed spark/big: no heartbeat of the agent for 600 ms while tasks stalled 40 ms for"
        " memory"
    )
    (victim,) = plan.victims
    assert victim.message == "trigger by koordebpf dead man's switch, kill pod: big"
    outcome = dead_man_outcome(choice, FIRING, NOW_NS + NS_PER_S)
    assert (outcome.result, outcome.killed_tasks, outcome.sent_ns) == (Result.DONE, 2, FIRING.fired_ns)
    assert outcome.was_sent


@pytest.mark.parametrize(
    ("firing", "result", "detail"),
    [
        (replace(FIRING, kills=False, signalled=0), Result.DRY_RUN, "2 processes, deadMan.action is count"),
        (replace(FIRING, refused=1, error=-16), Result.DONE, "refused (errno 16)"),
        (replace(FIRING, signalled=0, refused=2, error=-1), Result.FAILED, "none of 2 processes could be signalled"),
        (replace(FIRING, signalled=0, processes=0), Result.GONE, "no process was left"),
    ],
)
def test_what_became_of_the_victim(firing, result, detail):
    outcome = dead_man_outcome(chosen(tick()), firing, NOW_NS)
    assert outcome.result is result and detail in outcome.detail
    assert (outcome.sent_ns is not None) is (result is Result.DONE)


def test_counting_says_would_have():
    plan = dead_man_plan(chosen(tick()), replace(FIRING, kills=False))
    assert plan.sentence.startswith("the dead man's switch would have killed spark/big: ")
