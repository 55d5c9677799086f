"""Which of Koordinator's own choices `compat: strict` restores, each beside what happens without it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.configuration.checked import agent_config
from koordebpf.configuration.settings import defaults_for
from koordebpf.decision.strategies import OWN_GATES
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import FeaturePlan
from koordebpf.state.amount import MEMORY
from koordebpf.state.view import Frame
from koordebpf.tools.plan import Case
from koordebpf.units import MIB
from tests.scenarios import test_daemon_sets as daemon_sets
from tests.scenarios import test_unexplained_memory as unexplained
from tests.support.values.builders import (
    NOW_NS,
    PodAndMeasure,
    feature_of,
    frame,
    host_shm,
    in_flight,
    names,
    plan_of,
    pod,
    why_not,
)

OURS = EvictSettings()
STRICT = agent_config({"compat": "strict"}).eviction
ENABLED = {"koordinator.sh/eviction-enabled": "true"}
BATCH, MID = "kubernetes.io/batch-memory", "kubernetes.io/mid-memory"
WRITTEN = {
    "enable": True,
    "memoryAllocatableEvictThresholdPercent": 110,
    "memoryAllocatableEvictLowerPercent": 100,
    "allocatableEvictPriorityThreshold": 7999,
}


def both(recorded: Frame) -> tuple[FeaturePlan, FeaturePlan]:
    """Return what is done with the same frame, without and with `compat: strict`."""
    return feature_of(recorded, OURS), feature_of(recorded, STRICT)


def allocatable(pods: list[PodAndMeasure], has: dict[str, str], threshold: dict[str, Any]) -> Frame:
    gates = {"BEMemoryEvict": False, "MemoryAllocatableEvict": True}
    return frame(pods, used=100, gates=gates, allocatable=has, threshold=threshold)


def both_allocatable(recorded: Frame) -> tuple[FeaturePlan, FeaturePlan]:
    ours, strict = (plan_of(recorded, settings).features[1] for settings in (OURS, STRICT))
    return ours, strict


def batch(name: str, asks: str, **more: Any) -> PodAndMeasure:
    return pod(name, priority=5500, requests={BATCH: asks}, **{"anon": 10, "labels": ENABLED, **more})


def test_the_need_is_counted_from_the_floored_percent() -> None:
    # 809 MiB of 1000 are 80 %, down to 78 %: 29 MiB by what is used, 20 MiB by the percent.
    ours, strict = both(frame([pod("a", anon=25), pod("b", anon=20)], used=809))
    assert (ours.balance.need, strict.balance.need) == (29 * MIB, 20 * MIB)
    assert (names(ours), names(strict)) == (["a", "b"], ["a"])
    assert strict.verdict.needs[0].need == strict.balance.need == strict.verdict.koordinator_need


def test_the_percents_are_of_what_the_node_says() -> None:
    grown = frame([pod("hog", anon=400)], used=810, capacity="1000Mi", total_bytes=2000 * MIB)
    ours, strict = (Case(grown, settings).plan().features[0] for settings in (OURS, STRICT))
    assert (names(ours), names(strict)) == ([], ["hog"])


def test_the_kernels_memory_has_no_owner() -> None:
    ours, strict = both(frame([pod("relay", anon=2, kernel=200), pod("a", anon=20), pod("b", anon=15)], used=810))
    assert (names(ours), names(strict)) == (["relay"], ["a", "b"])
    (relay,) = (each for each in strict.candidates if each.name == "relay")
    assert (relay.rank, relay.of(MEMORY).used, relay.of(MEMORY).released, relay.kernel_bytes) == (
        3,
        2 * MIB,
        2 * MIB,
        None,
    )


def test_an_unmeasured_pod_is_a_candidate_and_is_evicted_in_its_turn() -> None:
    ours, strict = both(frame([pod("a", anon=50, priority=5500), pod("b", measured=False, priority=5000)], used=810))
    assert (names(ours), why_not(ours)) == (["a"], {"b": "no_cgroup"})
    assert (names(strict), why_not(strict)) == (["b", "a"], {})


def test_no_pod_is_spared_again_once_the_order_has_come_to_it() -> None:
    pods = [pod("small", anon=10, priority=5000), pod("large", anon=50, priority=5500)]
    ours, strict = both(frame(pods, used=810))
    assert (names(ours), names(strict)) == (["large"], ["small", "large"])


def test_a_tmpfs_that_outlives_its_pod_is_credited() -> None:
    pods = [pod("ramdisk", anon=50, shmem=40, volumes=[host_shm()]), pod("z", anon=45)]
    ours, strict = both(frame(pods, used=810))
    assert {each.name: each.of(MEMORY).released // MIB for each in ours.candidates} == {"ramdisk": 10, "z": 45}
    assert {each.name: each.of(MEMORY).released // MIB for each in strict.candidates} == {"ramdisk": 50, "z": 45}
    assert names(strict) == ["ramdisk"]


def test_the_cool_down_lasts_also_when_the_memory_is_back() -> None:
    gone = in_flight(pod("gone", anon=50), credit=50, seconds_ago=1)
    recorded = frame([pod("a", anon=50)], used=810, pending=[gone], last_evict_ns=gone.since_ns)
    ours, strict = both(recorded)
    assert names(ours) == ["a"]
    assert (names(strict), strict.reason) == ([], "the last eviction was less than 4 s ago")
    later = msgspec.structs.replace(recorded, lastEvictNs=NOW_NS - STRICT.cool_time_ns)
    assert names(feature_of(later, STRICT)) == ["a"]


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("memoryAllocatableEvictThresholdPercent", "MemoryAllocatableEvictThresholdPercent not config"),
        ("memoryAllocatableEvictLowerPercent", "MemoryAllocatableEvictLowerPercent not config"),
        ("allocatableEvictPriorityThreshold", "AllocatableEvictPriorityThreshold not config"),
    ],
)
def test_the_allocatable_feature_has_no_defaults(missing: str, text: str) -> None:
    threshold = {name: value for name, value in WRITTEN.items() if name != missing}
    ours, strict = both_allocatable(allocatable([batch("a", "300Mi")], {BATCH: "100Mi"}, threshold))
    assert names(ours) == ["a"]
    assert (names(strict), strict.verdict.skipped) == ([], "invalid_config")
    assert strict.verdict.reason.endswith(text)
    _, written = both_allocatable(allocatable([batch("a", "300Mi")], {BATCH: "100Mi"}, WRITTEN))
    assert names(written) == ["a"]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"memoryAllocatableEvictThresholdPercent": -1, "memoryAllocatableEvictLowerPercent": None}, "greater than 0"),
        ({"memoryAllocatableEvictLowerPercent": 110, "allocatableEvictPriorityThreshold": None}, "should less than"),
        ({"allocatableEvictPriorityThreshold": 8000}, "koor-prod pods should not be killed"),
    ],
)
def test_the_allocatable_checks_come_in_koordinators_order(changed: dict[str, Any], text: str) -> None:
    _, strict = both_allocatable(allocatable([batch("a", "300Mi")], {BATCH: "100Mi"}, WRITTEN | changed))
    assert text in strict.verdict.reason


def test_the_allocatable_feature_asks_for_a_measured_usage() -> None:
    ours, strict = both_allocatable(allocatable([batch("a", "300Mi", has_cgroup=False)], {BATCH: "100Mi"}, WRITTEN))
    assert names(ours) == ["a"]
    assert (names(strict), why_not(strict)) == ([], {"a": "no_cgroup"})


def test_neither_the_cause_of_stalls_nor_the_owner_changes_the_order() -> None:
    assert (OURS.prefer_aggressor, OURS.spread_owners) == (True, True)
    assert (STRICT.prefer_aggressor, STRICT.spread_owners, STRICT.across_priorities) == (False, False, False)


def test_the_gates_have_koordlets_defaults() -> None:
    ours, strict = (defaults_for("api", compat).feature_gates for compat in ("none", "strict"))
    assert ours["BEMemoryEvict"]
    assert not strict["BEMemoryEvict"]
    assert not any(strict[name] for name in OWN_GATES)


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_deleted_nodeslo_stays_in_force(is_strict: bool) -> None:
    written = msgspec.Raw(b'{"spec": {"resourceUsedThresholdWithBE": {"enable": true, "memoryEvictLowerPercent": 5}}}')
    known = ClusterView(strict=is_strict)
    known.learn(ClusterState(version=1, synced_at_ns=1))
    assert known.strategy is None
    known.learn(ClusterState(version=2, synced_at_ns=2, nodeslo=written))
    for version in (3, 4):
        known.learn(ClusterState(version=version, synced_at_ns=version))
        assert (known.strategy is not None) is is_strict
    if known.strategy:
        assert known.strategy.memoryEvictLowerPercent == 5
    known.learn(ClusterState(version=5, synced_at_ns=5, nodeslo=msgspec.Raw(b'{"spec": {}}')))
    assert known.strategy is not None
    assert known.strategy.enable is False


@pytest.mark.parametrize("settings", [OURS, STRICT], ids=["ours", "strict"])
def test_memory_evict_reaches_the_lower_mark_in_one_round(settings: EvictSettings) -> None:
    # 850 of 1000 MiB, down to 780: the first pod gives 40 of the 70. Koordinator would count 40,000 for it.
    pods = [pod("a", anon=40, priority=5000, labels=ENABLED), pod("b", anon=40, priority=5500, labels=ENABLED)]
    threshold = {"enable": True, "memoryEvictThresholdPercent": 80, "evictEnabledPriorityThreshold": 5999}
    gates = {"BEMemoryEvict": False, "MemoryEvict": True}
    round_ = plan_of(frame(pods, used=850, gates=gates, threshold=threshold), settings).features[1]
    assert names(round_) == ["a", "b"]
    assert round_.balance.missing == 0


def test_what_is_not_restored_because_it_would_not_be_safe() -> None:
    # Finished pods and pods that leave already are no candidates, nor are those that do not help the shortage.
    finished = frame([pod("a", anon=30), pod("done", phase="Succeeded", priority=1)], used=810)
    assert names(feature_of(finished, STRICT)) == ["a"]
    mid = pod("mid", anon=10, priority=7500, qos="LS", kube_qos="Burstable", requests={MID: "300Mi"}, labels=ENABLED)
    _, strict = both_allocatable(allocatable([batch("b", "10Mi"), mid], {BATCH: "1Gi", MID: "100Mi"}, WRITTEN))
    assert names(strict) == ["mid"]
    # Native memory is credited, so that the task comes to an end.
    native = [
        pod(f"n{n}", anon=10, priority=120, qos="LS", requests={"memory": "60Mi"}, labels=ENABLED) for n in (1, 2)
    ]
    _, strict = both_allocatable(allocatable(native, {"memory": "100Mi"}, WRITTEN))
    assert len(names(strict)) == 1


def test_a_grace_period_is_the_pods_own() -> None:
    hog = pod("hog", anon=400)
    spec = msgspec.structs.replace(hog.pod.spec, terminationGracePeriodSeconds=86400)
    hog = msgspec.structs.replace(hog, pod=msgspec.structs.replace(hog.pod, spec=spec))
    graces = [[victim.grace_s for victim in feature.victims] for feature in both(frame([hog], used=900))]
    assert graces == [[30], [None]]


def test_a_pod_of_a_daemon_set_is_evicted_each_time() -> None:
    node = daemon_sets.Node(EvictSettings(strict_compat=True))
    assert [names(node.round(daemon_sets.ABOVE)) for _ in range(3)] == [["logs-1"], ["logs-2"], ["logs-3"]]


def test_swap_in_zram_and_a_virtual_machine_count_for_the_node_only():
    vm = unexplained.holding("vm", elsewhere_bytes=500 * MIB)
    ours, strict = both(unexplained.node([*unexplained.QUIET, vm]))
    assert names(ours) == ["vm"]
    assert sorted(names(strict)) == ["quiet-0", "quiet-1", "quiet-2", "quiet-3"]


def test_memory_that_is_no_pods_holds_no_pod_back():
    ours, strict = (unexplained.decided(unexplained.node(), strict_compat=each) for each in (False, True))
    assert (unexplained.codes(ours), unexplained.gone(ours)) == (["unexplained_memory"], [])
    assert (unexplained.codes(strict), len(unexplained.gone(strict))) == ([], 4)
