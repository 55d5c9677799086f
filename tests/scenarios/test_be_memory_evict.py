"""What happens on a node, as stories: given a node, when a decision is made, then who is evicted and who stays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.errors import ConfigError
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.amount import MEMORY
from koordebpf.state.measured import StallParts, StrayMeasure
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import (
    NOW_NS,
    feature_of,
    frame,
    host_shm,
    in_flight,
    ls_pod,
    memory_volume,
    names,
    plan_of,
    pod,
    why_not,
)


def test_a_hog_is_evicted_and_the_sentence_says_why():
    # GIVEN a node at 87 % of which one best-effort pod holds 600 MiB
    node = frame([ls_pod("api", anon=200), pod("be-7", anon=600)], used=870)
    # WHEN
    plan = plan_of(node)
    # THEN it is evicted, and the sentence has the numbers
    assert names(plan.features[0]) == ["be-7"]
    assert plan.sentence == (
        "evicting spark/be-7 (priority 5000, 600 MiB): node at 87 % ≥ 80 %, need 90.0 MiB to reach 78 %"
    )
    (victim,) = plan.victims
    assert (victim.reason, victim.message) == ("evicted", "trigger by koordlet feature BEMemoryEvict, kill pod: be-7")


def test_just_below_the_line_no_pod_is_evicted():
    node = frame([pod("hog", anon=600)], used_bytes=800 * MIB - 1)
    plan = plan_of(node)
    assert plan.victims == ()
    assert plan.sentence == "no action: node at 79 % < 80 %"


def test_exactly_on_the_line_a_pod_is_evicted():
    assert names(feature_of(frame([pod("hog", anon=600)], used=800))) == ["hog"]


def test_a_flood_of_page_cache_evicts_no_pod():
    # GIVEN a best-effort pod that read 700 MiB of files; the node counts that as available
    node = frame([ls_pod("api", anon=200), pod("reader", anon=5, file=700)], used=210)
    assert plan_of(node).victims == ()


def test_page_cache_gives_no_credit_when_the_node_is_short_for_another_reason():
    # GIVEN the memory is the latency-sensitive pod's, and the best-effort pod has page cache alone
    node = frame([ls_pod("api", anon=850), pod("reader", file=700)], used=860)
    feature = feature_of(node)
    # THEN evicting it would give nothing back, so it stays, and what is missing is said
    assert names(feature) == []
    assert feature.balance.missing == feature.balance.need == 80 * MIB
    assert feature.reason == "no candidate would give memory back"


def test_a_pod_thrashing_in_its_own_limit_is_its_own_problem():
    # GIVEN a pod that stalls all the time at its own limit while the node has room
    thrashing = StallParts(window_ns=NS_PER_S, global_ns=0, limit_ns=950_000_000, limit_count=4000)
    node = frame([ls_pod("api", anon=200), pod("tight", anon=100, stall=thrashing)], used=400)
    assert plan_of(node).victims == ()


def test_one_hog_among_55_innocents_is_evicted_alone():
    # GIVEN 55 innocent pods of 1 MiB, all sorted before the hog in every way but usage
    innocents = [pod(f"z-innocent-{n}", anon=1) for n in range(55)]
    node = frame([*innocents, pod("a-hog", anon=500)], used=820)
    assert names(feature_of(node)) == ["a-hog"]


def test_one_hog_of_higher_priority_among_55_innocents_is_evicted_alone():
    # GIVEN innocents of lower priority, who together are not enough: the hog is evicted in any case
    innocents = [pod(f"innocent-{n}", anon=1, priority=5000) for n in range(55)]
    node = frame([*innocents, pod("hog", anon=700, priority=5999)], used=900)
    # THEN the innocents need not go as well
    assert names(feature_of(node)) == ["hog"]


def test_a_lower_priority_pod_is_evicted_before_a_larger_one():
    node = frame([pod("large", anon=400, priority=5500), pod("small", anon=100, priority=5000)], used=850)
    assert names(feature_of(node)) == ["small"]


def test_as_many_go_as_the_need_takes():
    node = frame([pod(f"be-{n}", anon=30 + n) for n in range(9)], used=860)
    feature = feature_of(node)  # need 80 MiB: 38 + 37 are not enough
    assert names(feature) == ["be-8", "be-7", "be-6"]
    assert feature.balance.credit == (38 + 37 + 36) * MIB
    assert feature.balance.missing == 0


def test_equal_priority_and_usage_go_by_name_from_the_end():
    node = frame([pod(name, anon=50) for name in ("b", "c", "a")], used=900)
    assert names(feature_of(node)) == ["c", "b", "a"]


def test_no_priority_counts_as_zero():
    node = frame([pod("five", anon=300, priority=5000), pod("none", anon=90, priority=None)], used=850)
    assert names(feature_of(node)) == ["none"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pods_are_no_candidates(phase):
    feature = feature_of(frame([pod("done", anon=300, priority=1, phase=phase), pod("hog", anon=300)], used=850))
    assert names(feature) == ["hog"]
    assert why_not(feature) == {"done": "finished"}


def test_terminating_pods_count_as_pending_release():
    # GIVEN 90 MiB leave already and 70 are needed
    node = frame([pod("leaving", anon=90, terminating=True), pod("hog", anon=400)], used=850)
    plan = plan_of(node)
    assert plan.victims == ()
    assert plan.features[0].balance.pending == 90 * MIB
    assert plan.sentence == (
        "no action: node at 85 % ≥ 80 %, need 70.0 MiB to reach 78 %, "
        "but 90.0 MiB is already coming back from spark/leaving"
    )


def test_a_pod_deleted_by_force_is_waited_for_while_its_cgroup_holds_memory():
    # GIVEN the hog was evicted; its object is gone already, its processes are not
    hog, other = pod("hog", anon=400), pod("other", anon=100)
    before = frame([other], used=850, pending=[in_flight(hog, credit=400, seconds_ago=1)])
    stray = StrayMeasure(7, "kubepods/besteffort/pod-hog", hog.measure.memory, hog.pod.uid)
    node = replace(before, measured=replace(before.measured, strays=(stray,)))
    # THEN no other pod is evicted in its place, until its cgroup is empty
    assert plan_of(node).victims == ()
    assert f"already coming back from pod {hog.pod.uid}" in plan_of(node).sentence
    assert names(feature_of(before)) == ["other"]


def test_what_leaves_is_subtracted_from_the_need():
    # GIVEN 120 MiB are needed, 50 leave with a latency-sensitive pod
    node = frame([ls_pod("old", anon=50, terminating=True), pod("a", anon=60), pod("b", anon=75)], used=900)
    feature = feature_of(node)
    # THEN the other 70 are found, and no more
    assert (feature.balance.need, feature.balance.pending) == (120 * MIB, 50 * MIB)
    assert names(feature) == ["b"]


def test_as_much_leaving_as_needed_is_enough():
    plan = plan_of(frame([pod("leaving", anon=70, terminating=True), pod("hog", anon=400)], used=850))
    assert plan.victims == ()
    assert plan.sentence.endswith("but 70.0 MiB is already coming back from spark/leaving")


def test_a_pod_that_was_evicted_counts_with_what_it_still_holds():
    # GIVEN the hog was evicted with a credit of 400 MiB, of which 30 are left
    hog, other = pod("hog", anon=30, priority=1), pod("other", anon=100)
    node = frame([hog, other], used=850, pending=[in_flight(hog, credit=400, seconds_ago=5)])
    feature = feature_of(node)
    assert feature.balance.pending == 30 * MIB
    assert names(feature) == ["other"]
    assert why_not(feature) == {"hog": "leaving"}


def test_a_pod_that_cannot_die_does_not_shield_the_others():
    stuck = pod("stuck", anon=400, terminating=True)
    node = frame([stuck, pod("other", anon=100)], used=850, pending=[in_flight(stuck, credit=400, seconds_ago=121)])
    assert names(feature_of(node)) == ["other"]


def test_a_pod_that_was_evicted_in_vain_may_be_evicted_again():
    deaf = pod("deaf", anon=400)
    assert names(feature_of(frame([deaf], used=850, pending=[in_flight(deaf, credit=400, seconds_ago=119)]))) == []
    assert names(feature_of(frame([deaf], used=850, pending=[in_flight(deaf, credit=400, seconds_ago=121)]))) == [
        "deaf"
    ]


def test_what_is_missing_is_missing_beyond_what_leaves():
    feature = feature_of(frame([pod("old", anon=50, terminating=True), pod("a", anon=30)], used=900))
    assert (feature.balance.need, feature.balance.pending, feature.balance.credit) == (120 * MIB, 50 * MIB, 30 * MIB)
    assert feature.balance.missing == 40 * MIB


def test_after_an_eviction_the_node_gets_time_to_see_the_memory_come_back():
    hog, more = pod("hog", anon=60), pod("more", anon=300)
    node = frame(
        [hog, more], used=900, pending=[in_flight(hog, credit=60, seconds_ago=1)], last_evict_ns=NOW_NS - NS_PER_S
    )
    plan = plan_of(node)
    assert plan.victims == ()
    assert plan.sentence.endswith("but what was evicted last has not released its memory yet")
    # WHEN the cool-down is over, or set to nothing
    assert names(feature_of(node, EvictSettings(cool_time_ns=NS_PER_S))) == ["more"]


def test_the_cool_down_ends_when_the_memory_is_back():
    # GIVEN an eviction 100 ms ago whose pod is gone
    gone, more = pod("gone", anon=0, measured=False), pod("more", anon=300)
    entry = in_flight(gone, credit=400, seconds_ago=0.1)
    node = frame([more], used=900, pending=[entry], last_evict_ns=NOW_NS - NS_PER_S // 10)
    assert names(feature_of(node)) == ["more"]


def test_the_policy_annotation_protects():
    allowed = pod("allowed", anon=200, policy='["BEMemoryEvict", "BECPUEvict"]', priority=5999)
    others = [
        pod(f"safe-{n}", anon=300, policy=policy)
        for n, policy in enumerate(['["BECPUEvict"]', "[]", "", '"BEMemoryEvict"', "{oops", "[1]"])
    ]
    feature = feature_of(frame([allowed, *others], used=850))
    assert names(feature) == ["allowed"]
    assert set(why_not(feature).values()) == {"policy"}


def test_only_the_exact_label_makes_a_candidate():
    node = frame(
        [
            pod("lower-case", anon=300, qos="be"),
            pod("unlabelled", anon=300, qos=None),
            pod("burstable-be", anon=200, kube_qos="Burstable"),
            ls_pod("api", anon=300),
        ],
        used=850,
    )
    feature = feature_of(node)
    assert names(feature) == ["burstable-be"]
    assert why_not(feature) == {"lower-case": "label_unknown", "unlabelled": "unlabelled"}


def test_pods_without_measured_memory_are_no_candidates():
    node = frame(
        [pod("unseen", measured=False, priority=1), pod("bare", has_cgroup=False, priority=1), pod("hog", anon=200)],
        used=850,
    )
    feature = feature_of(node)
    assert names(feature) == ["hog"]
    assert why_not(feature) == {"unseen": "no_cgroup", "bare": "no_cgroup"}


def test_a_static_pod_can_be_killed_but_not_evicted():
    pods = [pod("static", anon=300, mirror=True, priority=1), pod("hog", anon=200)]
    assert why_not(feature_of(frame(pods, used=850))) == {"static": "static"}
    assert names(feature_of(frame(pods, used=850, executor="cgroup"))) == ["static"]


def test_a_memory_volume_is_freed_by_an_eviction_and_kept_by_a_kill():
    # GIVEN a pod of 300 MiB, 280 of them in an emptyDir on tmpfs
    pods = [pod("ramdisk", anon=300, shmem=280, volumes=[memory_volume()]), pod("hog", anon=250)]
    # WHEN it is evicted through the API, kubelet unmounts the volume
    assert names(feature_of(frame(pods, used=850))) == ["ramdisk"]
    # WHEN its cgroup is killed, the volume stays: 20 MiB would come back of the 70 needed; Koordinator counts all
    feature = feature_of(frame(pods, used=850, executor="cgroup"))
    assert names(feature) == ["hog"]
    ramdisk = feature.candidates[1]  # ranked by what comes back
    assert (ramdisk.of(MEMORY).released, ramdisk.koordinator_credit_bytes) == (20 * MIB, 300 * MIB)


def test_files_on_the_hosts_tmpfs_stay_in_any_case():
    pods = [pod("cache", anon=300, shmem=300, volumes=[host_shm()], priority=1), pod("hog", anon=250)]
    for executor in ("api", "cgroup"):
        assert names(feature_of(frame(pods, used=850, executor=executor))) == ["hog"]


def test_when_no_pod_has_enough_all_that_help_are_evicted_and_the_rest_is_named():
    plan = plan_of(frame([ls_pod("api", anon=800), pod("a", anon=30), pod("b", anon=20), pod("c")], used=900))
    assert names(plan.features[0]) == ["a", "b"]
    assert plan.features[0].balance.missing == 70 * MIB
    assert plan.sentence.endswith("; 70.0 MiB will be missing: no other best-effort pod would give memory back")


def test_a_node_cgroup_is_judged_by_its_limit_not_by_the_machine():
    node = frame([pod("hog", anon=300)], used=850, capacity="64Gi", scope="cgroup")
    assert names(feature_of(node)) == ["hog"]


@pytest.mark.parametrize(
    ("threshold", "word", "text"),
    [
        ({"memoryEvictThresholdPercent": 80}, "disabled", "resourceUsedThresholdWithBE.enable is false"),
        ({"enable": False}, "disabled", "resourceUsedThresholdWithBE.enable is false"),
        (
            {"enable": True, "memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 80},
            "invalid_config",
            "resourceUsedThresholdWithBE is unusable: lower percent(80) should less than threshold percent(80)",
        ),
        (
            {"enable": True, "memoryEvictThresholdPercent": -1},
            "invalid_config",
            "resourceUsedThresholdWithBE is unusable: threshold percent(-1) should equal or greater than 0",
        ),
    ],
)
def test_a_strategy_that_is_off_or_unusable_evicts_no_pod_and_says_so(threshold, word, text):
    plan = plan_of(frame([pod("hog", anon=900)], used=990, threshold=threshold))
    assert plan.victims == ()
    assert plan.features[0].verdict.skipped == word
    assert plan.sentence == f"no action: {text}"


def test_a_closed_gate_evicts_no_pod():
    plan = plan_of(frame([pod("hog", anon=900)], used=990, gate=False))
    assert (plan.victims, plan.features[0].verdict.skipped) == ((), "gate_off")


def test_a_wrong_type_in_the_nodeslo_is_an_error_with_its_path():
    node = frame([pod("hog", anon=900)], used=990, threshold={"enable": True, "memoryEvictThresholdPercent": "85"})
    with pytest.raises(ConfigError) as caught:
        plan_of(node)
    assert str(caught.value) == (
        "spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent: '85': must be an integer 0…100"
    )
