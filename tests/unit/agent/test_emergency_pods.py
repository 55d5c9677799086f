"""On which pods an agent without its API server may still decide."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.emergency import Emergency
from koordebpf.decision.decide_tick import TickDecision, TickFrame, TickSettings, decided_again
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.policy.guards import EmergencySettings
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.amount import MEMORY
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import Measured, MemoryParts, NodeMeasure, PodMeasure
from koordebpf.state.view import Frame, RefusedEviction
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import memory_volume, pod

SYNCED_NS = 1_000 * NS_PER_S
A, B, C = pod("a", volumes=[memory_volume()]), pod("b"), pod("c")
PODS = tuple(each.pod for each in (A, B, C))
KNOWN = ClusterState(version=1, synced_at_ns=SYNCED_NS)
STRATEGY = ResourceThresholdStrategy(enable=True, memoryEvictThresholdPercent=70, memoryEvictLowerPercent=10)
SETTINGS = TickSettings(
    emergency=EmergencySettings(action="kill-be", after_ns=120 * NS_PER_S, max_age_ns=600 * NS_PER_S)
)
GATES = {"BEMemoryEvict": True, "MemoryEvict": True}


def at(seconds: int, **cgroups: int | None) -> Measured:
    """Return what was measured so long after the last sign of life, by pod its cgroup."""
    uids = {each.metadata.name: each.uid for each in PODS}
    now_ns = SYNCED_NS + seconds * NS_PER_S
    memory = MemoryParts(100 * MIB, 0, 90 * MIB, 0, 0, 0, shmem_bytes=30 * MIB)
    return Measured(
        now_ns=now_ns,
        since_ns=now_ns - 1,
        node=NodeMeasure(scope="machine", total_bytes=1000 * MIB, used_bytes=900 * MIB),
        pods=tuple(PodMeasure(uid=uids[name], cgroup_id=cgroup, memory=memory) for name, cgroup in cgroups.items()),
    )


def decided(lost: Emergency, measured: Measured, gates: dict[str, bool] | None = None) -> TickDecision:
    """Return what a round decides whose API server was last heard of at SYNCED_NS."""
    frame = Frame(
        schema="koordebpf.frame/v3",
        measured=measured,
        pods=PODS,
        featureGates=gates or GATES,
        refused=(RefusedEviction(A.pod.uid, None, "a disruption budget"),),
        strategyInForce=STRATEGY,
    )
    facts = GuardFacts(now_ns=measured.now_ns, source="api", pods_synced_ns=SYNCED_NS)
    cgroups = lost.listed_cgroups(measured, KNOWN)
    return decided_again(TickFrame(frame=frame, settings=SETTINGS, guards=facts, listed_cgroups=cgroups))


def is_emergency(lost: Emergency, seconds: int) -> bool:
    carried = decided(lost, at(seconds, a=1)).carried
    return carried is not None and carried.by == "emergency"


@pytest.fixture
def lost() -> Emergency:
    """Return one that has seen a, b and c in cgroups 1, 2 and none while the list was fresh."""
    executor = CgroupExecutor(lambda *_: None, OutcomeQueue(lambda: None))
    emergency = Emergency(90 * NS_PER_S, executor)
    assert emergency.listed_cgroups(at(0, a=9, b=9), KNOWN) is None
    assert emergency.listed_cgroups(at(90, a=1, b=2, c=None), KNOWN) is None
    return emergency


def test_it_is_one_from_its_time_to_its_end(lost: Emergency) -> None:
    assert [is_emergency(lost, seconds) for seconds in (91, 120, 121, 600, 601)] == [False, False, True, True, False]


def test_before_the_first_list_there_is_none(lost: Emergency) -> None:
    assert lost.listed_cgroups(at(300), ClusterState(version=1, synced_at_ns=0)) is None


def test_a_server_that_says_no_is_not_lost(lost: Emergency) -> None:
    assert lost.listed_cgroups(at(300), msgspec.structs.replace(KNOWN, is_denied=True)) is None


@pytest.mark.parametrize(
    ("cgroups", "names"),
    [
        ({"a": 1, "b": 2}, ["a", "b"]),
        ({"a": 1, "b": 3}, ["a"]),  # created again under the same uid
        ({"a": 2, "b": 1}, []),  # whatever that is
        ({"a": 1, "b": None}, ["a"]),
        ({"a": 1, "b": 2, "c": 3}, ["a", "b"]),  # c had none when the list was fresh
        ({"a": 9, "b": 9}, []),  # those of an older fresh list
        ({}, []),
    ],
)
def test_only_the_same_pods_in_the_same_cgroups(
    lost: Emergency, cgroups: dict[str, int | None], names: list[str]
) -> None:
    carried = decided(lost, at(300, **cgroups)).carried
    assert carried is not None
    assert carried.plan.sentence.startswith("emergency: the API server has not been heard of for 300 s > 120 s")
    (feature,) = carried.plan.features
    assert sorted(each.name for each in feature.candidates) == names
    assert sorted(each.candidate.name for each in carried.screening.allowed) == names


def test_the_decision_is_on_best_effort_pods_and_for_a_kill(lost: Emergency) -> None:
    decision = decided(lost, at(300, a=1, b=2))
    assert [each.verdict.feature for each in decision.plan.features] == ["BEMemoryEvict"]
    assert [each.code for each in decision.guards] == ["pods_stale"]
    assert decision.holding == ()
    # A volume in memory outlives a kill, though it would not outlive an eviction.
    credit = {each.candidate.name: each.candidate.of(MEMORY).released for each in decision.plan.victims}
    assert credit["a"] < credit["b"]


def test_a_gate_that_is_off_stays_off(lost: Emergency) -> None:
    decision = decided(lost, at(300, a=1), gates={"BEMemoryEvict": False, "MemoryEvict": True})
    assert (decision.is_short, decision.carried) == (False, None)
