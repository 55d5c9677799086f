"""Memory QoS: what each class, annotation and request gives a pod, its containers and the directories above."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.strategies.memory_qos.decide import WantedOfNode, directory_writes, memory_qos_rules, pod_writes
from koordebpf.strategies.memory_qos.values import (
    MemoryPod,
    MemoryQosMeasured,
    MemoryQosRules,
    MemoryQosSettings,
    MemoryQosView,
    Protection,
    memory_pod,
)
from koordebpf.units import PAGE_BYTES
from tests.support.values.hooks import batch_pod_object
from tests.support.values.memory_qos import ANOLIS, GIB, MIB, V1, V2, memory, memory_pod_of, memory_qos, rules_of
from tests.support.values.resized import whole

MIN, LOW, HIGH = "memory.min", "memory.low", "memory.high"
BATCH = "kubernetes.io/batch-memory"
DIRECTORIES = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}


def directory_of(pod: MemoryPod) -> PodDirectory:
    path = f"kubepods/pod{pod.uid}"
    return PodDirectory(pod.uid, path, {each.id: f"{path}/{each.name}" for each in pod.containers if each.id})


def of_pod(pod: MemoryPod, rules: MemoryQosRules) -> dict[str, dict[str, object]]:
    """Return the values of the pod's own level (name "") and of its containers, by file."""
    found: dict[str, dict[str, object]] = {}
    for each in pod_writes(pod, directory_of(pod), rules).writes:
        container = each.write.path.removeprefix(f"kubepods/pod{pod.uid}").strip("/")
        found.setdefault(container, {})[each.write.file.value] = each.write.value
    return found


def view_of(*pods: MemoryPod, **given: object) -> MemoryQosView:
    measured = MemoryQosMeasured(tuple(map(directory_of, pods)), DIRECTORIES, **given)
    return MemoryQosView(measured, pods, 16 * GIB)


def of_directories(rules: MemoryQosRules, *pods: MemoryPod, **given: object) -> dict[tuple[str, str], object]:
    made = [pod_writes(each, directory_of(each), rules) for each in pods]
    wanted = directory_writes(view_of(*pods, **given), made, rules)
    return {(each.write.path, each.write.file.value): each.write.value for each in wanted.writes}


LS = {"minLimitPercent": 20, "lowLimitPercent": 50, "throttlingPercent": 80}


class TestPod:
    def test_a_pod_is_protected_by_percents_of_its_request_and_its_containers_are_throttled(self):
        pod = memory_pod_of("LS", {"a": memory("1Gi", "2Gi"), "b": memory("1Gi")})
        assert of_pod(pod, rules_of(ls=LS)) == {
            "": {MIN: 2 * GIB * 20 // 100, LOW: GIB},
            "a": {MIN: GIB * 20 // 100, LOW: GIB // 2, HIGH: (GIB + GIB * 80 // 100) // PAGE_BYTES * PAGE_BYTES},
            "b": {MIN: GIB * 20 // 100, LOW: GIB // 2, HIGH: GIB + 15 * GIB * 80 // 100 // PAGE_BYTES * PAGE_BYTES},
        }

    def test_what_a_pod_has_at_its_own_level_protects_it_and_limits_its_containers(self):
        pod = whole(batch_pod_object("LS", {"a": {}, "b": {}}, kube_qos="Burstable"), memory("8Gi", "12Gi"))
        high = 12 * GIB * 80 // 100 // PAGE_BYTES * PAGE_BYTES
        assert of_pod(memory_pod(pod_facts(pod)), rules_of(ls=LS)) == {
            "": {MIN: 8 * GIB * 20 // 100, LOW: 4 * GIB},
            **{name: {MIN: 0, LOW: 0, HIGH: high} for name in "ab"},
        }
        assert memory_pod(pod_facts(pod)).limit_bytes == 12 * GIB

    def test_low_is_at_least_min_and_high_too(self):
        pod = memory_pod_of("LS", {"a": memory("1Gi", "1Gi")})
        found = of_pod(pod, rules_of(ls={"minLimitPercent": 100, "lowLimitPercent": 20, "throttlingPercent": 1}))
        assert found == {"": {MIN: GIB, LOW: GIB}, "a": {MIN: GIB, LOW: GIB, HIGH: GIB}}

    def test_percents_of_0_are_no_protection_and_no_throttling(self):
        pod = memory_pod_of("LS", {"a": memory("1Gi")})
        assert of_pod(pod, rules_of(ls={})) == {"": {MIN: 0, LOW: 0}, "a": {MIN: 0, LOW: 0, HIGH: None}}

    def test_a_pod_without_a_request_has_no_protection(self):
        found = of_pod(memory_pod_of("LS", {"a": {}}), rules_of(ls=LS))
        assert found[""] == {MIN: 0, LOW: 0}
        assert found["a"][HIGH] == 16 * GIB * 80 // 100 // PAGE_BYTES * PAGE_BYTES

    def test_without_a_node_no_container_without_limit_is_throttled(self):
        rules = replace(rules_of(ls=LS), allocatable_bytes=None)
        assert HIGH not in of_pod(memory_pod_of("LS", {"a": memory("1Gi")}), rules)["a"]
        assert HIGH in of_pod(memory_pod_of("LS", {"a": memory("1Gi", "2Gi")}), rules)["a"]

    @pytest.mark.parametrize(
        ("qos", "kube_qos", "part"),
        [
            ("LSE", "Guaranteed", "lsr"), ("LSR", "Guaranteed", "lsr"), ("LS", "Burstable", "ls"),
            ("BE", "BestEffort", "be"), ("SYSTEM", "Burstable", "system"),
            ("", "Guaranteed", "lsr"), ("", "Burstable", "ls"), ("", "BestEffort", "be"),
        ],
    )  # fmt: skip
    def test_the_class_is_that_of_the_label_or_of_the_kubernetes_class(self, qos, kube_qos, part):
        resource = BATCH if part == "be" else "memory"
        pod = memory_pod_of(qos, {"a": memory("1Gi", "1Gi", resource)}, kube_qos=kube_qos)
        assert of_pod(pod, rules_of(**{part: {"minLimitPercent": 100}}))[""][MIN] == GIB
        others = {name: {"minLimitPercent": 100} for name in ("lsr", "ls", "be", "system") if name != part}
        assert of_pod(pod, rules_of(**others)) == {}

    def test_a_best_effort_pod_is_measured_by_its_batch_memory(self):
        pod = memory_pod_of("BE", {"a": memory("1Gi", "2Gi", BATCH), "b": memory("4Gi")})
        found = of_pod(pod, rules_of(be={"lowLimitPercent": 50, "throttlingPercent": 50}))
        assert found[""][LOW] == GIB // 2
        assert found["a"][HIGH] == GIB + GIB // 2

    def test_a_mid_pod_is_measured_by_its_mid_memory(self):
        pod = batch_pod_object(
            "LS", {"a": memory("1Gi", "2Gi", "kubernetes.io/mid-memory")}, kube_qos="Burstable",
            labels={"koordinator.sh/priority-class": "koord-mid"},
        )  # fmt: skip
        pod = replace(pod, spec=replace(pod.spec, priority=7500))
        assert of_pod(memory_pod(pod_facts(pod)), rules_of(ls=LS))[""][LOW] == GIB // 2

    def test_a_class_that_is_not_enabled_leaves_its_pods_alone(self):
        pod, system = memory_pod_of("LS", {"a": memory("1Gi")}), memory_pod_of("SYSTEM", {"a": memory("1Gi")})
        assert of_pod(pod, rules_of(ls={"enable": False, "minLimitPercent": 100})) == {}
        assert of_pod(system, rules_of(system={"enable": False, "minLimitPercent": 100})) == {}
        assert of_pod(pod, MemoryQosRules(None, V2)) == {}

    def test_an_init_container_has_room_in_its_pod(self):
        pod = memory_pod_of(
            "BE", {"a": memory("1Gi", 0, BATCH)}, init={"i": memory("3Gi", 0, BATCH)},
            sidecars={"s": memory("1Gi", 0, BATCH)},
        )  # fmt: skip
        found = of_pod(pod, rules_of(be={"minLimitPercent": 100}))
        assert [found[name][MIN] // GIB for name in ("", "a", "i", "s")] == [3, 1, 3, 1]  # the sidecar starts later

    def test_a_container_that_is_not_there_yet_gets_nothing_and_its_pod_what_it_asks_for(self):
        pod = memory_pod_of("LS", {"a": memory("1Gi")})
        pod = replace(pod, containers=tuple(replace(each, id=None) for each in pod.containers))
        assert of_pod(pod, rules_of(ls=LS)) == {"": {MIN: GIB * 20 // 100, LOW: GIB // 2}}

    def test_a_quantity_that_cannot_be_read_is_named_and_asks_for_nothing(self):
        pod = memory_pod_of("LS", {"a": memory("much"), "b": memory("1Gi")})
        assert of_pod(pod, rules_of(ls=LS))[""] == {MIN: 0, LOW: 0}
        (problem,) = pod_writes(pod, directory_of(pod), rules_of(ls=LS)).problems
        assert problem.startswith("pod team/web: spec.containers[a].resources.memory: 'much': must be")


class TestFiles:
    FIELDS: ClassVar = {
        "minLimitPercent": 0, "wmarkRatio": 95, "wmarkScalePermill": 20, "wmarkMinAdj": -25,
        "priorityEnable": 1, "priority": 10, "oomKillGroup": 1,
    }  # fmt: skip

    def test_files_of_anolis_kernels_are_written_where_they_are(self):
        pod = memory_pod_of("LS", {"a": memory("1Gi")})
        more = {
            "memory.wmark_ratio": 95, "memory.wmark_scale_factor": 20, "memory.wmark_min_adj": -25,
            "memory.priority": 10, "memory.use_priority_oom": 1, "memory.oom.group": 1,
        }  # fmt: skip
        found = of_pod(pod, rules_of(ANOLIS, ls=self.FIELDS))
        assert found == {"": {MIN: 0, LOW: 0} | more, "a": {MIN: 0, LOW: 0, HIGH: None} | more}
        assert of_pod(pod, rules_of(V2, ls=self.FIELDS))[""] == {MIN: 0, LOW: 0, "memory.oom.group": 1}
        assert of_pod(pod, rules_of(V1, ls=self.FIELDS)) == {}

    def test_kubelets_own_oom_group_of_containers_stays(self):
        found = of_pod(memory_pod_of("LS", {"a": {}}), rules_of(ls={"oomKillGroup": 0}))
        assert not any("memory.oom.group" in level for level in found.values())

    def test_no_directory_above_pods_has_an_oom_group(self):
        pods = [memory_pod_of("LS", {"a": {}}), memory_pod_of("BE", {"a": {}}, uid="uid-2")]
        found = of_directories(rules_of(ANOLIS, lsr=self.FIELDS, ls=self.FIELDS, be=self.FIELDS), *pods)
        assert not [file for _, file in found if file == "memory.oom.group"]
        assert {path for path, file in found if file == "memory.priority"} == set(DIRECTORIES.values())
        assert {path for path, file in found if file == "memory.wmark_ratio"} == set()

    @pytest.mark.parametrize(
        ("fields", "limit", "wanted"),
        [
            ({"pageCacheLimitPercent": 25}, "2Gi", (1, GIB // 2, 0)),
            ({"pageCacheLimitPercent": 25}, 0, (0, 0, None)),
            ({"pageCacheLimitSize": "1Gi", "pageCacheLimitSync": 1}, "2Gi", (1, GIB, 1)),
            ({"pageCacheLimitSize": "4Gi", "pageCacheReclaimSync": True}, "2Gi", (1, 2 * GIB, 1)),
            ({"pageCacheLimitSize": "4Gi"}, 0, (1, 4 * GIB, 0)),
            ({"pageCacheLimitSize": "1Gi", "pageCacheEnable": False}, "2Gi", (0, GIB, 0)),
            ({"pageCacheLimitSize": "1Gi", "pageCacheLimitEnable": 0}, "2Gi", (0, GIB, 0)),
            ({"pageCacheLimitSize": 0}, "2Gi", (0, 0, None)),
            ({"pageCacheEnable": True}, "2Gi", (1, None, None)),  # a limit that is there, or the kernel's own
            ({"pageCacheEnable": False}, "2Gi", (0, None, None)),
            ({"pageCacheLimitSize": "large", "pageCacheEnable": True}, "2Gi", (None, None, None)),
            ({}, "2Gi", (None, None, None)),
        ],
    )
    def test_a_pods_page_cache_is_limited_to_a_part_of_its_limit(self, fields, limit, wanted):
        found = of_pod(memory_pod_of("BE", {"a": memory("1Gi", limit, BATCH)}), rules_of(ANOLIS, be=fields))
        files = [f"memory.pagecache_limit.{name}" for name in ("enable", "size", "sync")]
        assert tuple(found[""].get(file) for file in files) == wanted
        assert not set(files) & set(found["a"])

    def test_a_size_that_cannot_be_read_limits_nothing_and_is_named(self):
        rules, pod = rules_of(ANOLIS, be={"pageCacheLimitSize": "large"}), memory_pod_of("BE", {"a": {}})
        assert "memory.pagecache_limit.size" not in of_pod(pod, rules)[""]
        assert "pageCacheLimitSize: 'large'" in pod_writes(pod, directory_of(pod), rules).problems[0]


class TestAnnotation:
    RULES = rules_of(ANOLIS, ls=LS)

    def found(self, own, rules=RULES, qos="LS"):
        return of_pod(memory_pod_of(qos, {"a": memory("1Gi", "2Gi")}, own), rules)

    def problems(self, own, rules=RULES):
        pod = memory_pod_of("LS", {"a": memory("1Gi", "2Gi")}, own)
        return pod_writes(pod, directory_of(pod), rules).problems

    def test_with_none_a_pod_keeps_the_limits_of_its_class_alone(self):
        reclaim, high = {"memory.wmark_ratio": 95, "memory.wmark_scale_factor": 20}, GIB + GIB * 80 // 100
        assert self.found({"policy": "none", "minLimitPercent": 100}) == {
            "": reclaim, "a": reclaim | {HIGH: high - high % PAGE_BYTES},
        }  # fmt: skip
        assert self.problems({"policy": "none", "minLimitPercent": 100}) == ()
        assert self.found({"policy": "none"}, rules_of(ANOLIS)) == {}
        assert self.found({"policy": "none"}, replace(self.RULES, weaker_annotations=True)) == {}

    def test_auto_is_the_recommended_value_of_the_class_in_place_of_the_nodes(self):
        found = self.found({"policy": "auto"})
        level = found[""]
        assert (level[MIN], level["memory.wmark_ratio"], level["memory.wmark_min_adj"]) == (0, 95, -25)
        assert found["a"][HIGH] == self.found({})["a"][HIGH]
        assert self.found({"policy": "auto"}, replace(self.RULES, weaker_annotations=True))["a"][HIGH] is None
        # Where the class is not enabled, nothing gives the pod more than the kernel does.
        assert self.found({"policy": "auto"}, rules_of(ANOLIS))[""] == {
            file: value for file, value in level.items() if file != "memory.wmark_min_adj"
        }

    BE: ClassVar = {
        "lowLimitPercent": 30, "throttlingPercent": 50, "wmarkRatio": 90, "wmarkScalePermill": 20, "wmarkMinAdj": 50,
        "oomKillGroup": 1, "pageCacheLimitSize": "1Gi", "pageCacheLimitSync": 1,
    }  # fmt: skip

    @pytest.mark.parametrize(
        ("own", "rule"),
        [
            ({"throttlingPercent": 0}, "throttlingPercent: 0: must be 1 to 50, as its class has"),
            ({"throttlingPercent": 51}, "throttlingPercent: 51: must be 1 to 50, as its class has"),
            ({"wmarkRatio": 0}, "wmarkRatio: 0: must be 1 to 90, as its class has"),
            ({"wmarkScalePermill": 19}, "wmarkScalePermill: 19: must be at least 20, as its class has"),
            ({"wmarkMinAdj": -25}, "wmarkMinAdj: -25: must be at least 50, as its class has"),
            ({"oomKillGroup": 0}, "oomKillGroup: 0: must be at least 1, as its class has"),
            ({"minLimitPercent": 1}, "minLimitPercent: 1: must be at most 0, as its class has: the pod"),
            ({"lowLimitPercent": 100}, "lowLimitPercent: 100: must be at most 30, as its class has"),
            ({"pageCacheEnable": False}, "must limit the page cache as its class does, or more"),
            ({"pageCacheLimitSize": 0}, "must limit the page cache as its class does, or more"),
            ({"pageCacheLimitSize": "1025Mi"}, "must limit the page cache as its class does, or more"),
            ({"pageCacheLimitSize": "512Mi", "pageCacheLimitSync": 0}, "must limit the page cache as its class does"),
            ({"pageCacheLimitSize": "much"}, "pageCacheLimitSize: 'much': must be a Kubernetes quantity"),
            ({"policy": "none"}, ""),
            ({"policy": "auto"}, ""),
        ],
    )  # fmt: skip
    def test_no_limit_of_a_class_is_lifted(self, own, rule):
        rules = rules_of(ANOLIS, be=self.BE)
        pod, plain = (memory_pod_of("BE", {"a": memory("1Gi", "2Gi", BATCH)}, each) for each in (own, None))
        found, of_class = of_pod(pod, rules), of_pod(plain, rules)
        lifted = of_pod(pod, replace(rules, weaker_annotations=True))
        without = ("memory.min", "memory.low", "memory.priority", "memory.use_priority_oom")
        for level, values in of_class.items():
            for file in values.keys() - set(without):
                assert found[level][file] == values[file], (level, file)
        assert found[""].get(LOW, 0) <= of_class[""][LOW]
        assert lifted != found
        problems = pod_writes(pod, directory_of(pod), rules).problems
        assert any(rule in each for each in problems) if rule else problems == ()

    @pytest.mark.parametrize(
        ("own", "file", "value"),
        [
            ({"throttlingPercent": 10}, HIGH, GIB + GIB * 10 // 100 // PAGE_BYTES * PAGE_BYTES),
            ({"wmarkRatio": 50}, "memory.wmark_ratio", 50),
            ({"wmarkScalePermill": 100}, "memory.wmark_scale_factor", 100),
            ({"lowLimitPercent": 0}, LOW, 0),
        ],
    )
    def test_a_pod_may_limit_itself_more(self, own, file, value):
        pod = memory_pod_of("BE", {"a": memory("1Gi", "2Gi", BATCH)}, own)
        assert of_pod(pod, rules_of(ANOLIS, be=self.BE))["a"][file] == value
        assert pod_writes(pod, directory_of(pod), rules_of(ANOLIS, be=self.BE)).problems == ()
        smaller = memory_pod_of("BE", {"a": memory("1Gi", "2Gi", BATCH)}, {"pageCacheLimitSize": "512Mi"})
        assert of_pod(smaller, rules_of(ANOLIS, be=self.BE))[""]["memory.pagecache_limit.size"] == GIB // 2

    @pytest.mark.parametrize("policy", [{}, {"policy": ""}, {"policy": "default"}])
    def test_single_fields_replace_those_of_the_class(self, policy):
        level = self.found({**policy, "minLimitPercent": 40})[""]
        assert (level[MIN], level[LOW]) == (GIB * 40 // 100, GIB // 2)
        # Also where the class is not enabled: those alone.
        assert self.found({**policy, "minLimitPercent": 40}, rules_of(ANOLIS)) == {
            "": {MIN: GIB * 40 // 100}, "a": {MIN: GIB * 40 // 100},
        }  # fmt: skip

    @pytest.mark.parametrize(
        "written",
        [
            "no", "[]", '{"policy": "all"}', '{"minLimitPercent": 101}', '{"lowLimitPercent": -1}', "{" * 9000,
            '{"throttlingPercent": 5.5}', '{"priority": 13}', '{"wmarkMinAdj": 51}', "[" * 4000,
            json.dumps({"pageCacheLimitSize": "1" * 65}),
        ],
    )  # fmt: skip
    def test_one_that_cannot_be_read_is_named_and_counts_as_none(self, written):
        assert self.found(written) == of_pod(memory_pod_of("LS", {"a": memory("1Gi", "2Gi")}), self.RULES)
        (problem,) = self.problems(written)
        assert problem.startswith("pod team/web: annotation koordinator.sh/memoryQOS: ")
        assert len(problem) < 300

    def test_it_gives_no_more_priority_than_the_operator_allows_or_the_class_has(self):
        assert self.found({"priority": 5})[""]["memory.priority"] == 0
        assert "priority: 5: must be at most 0" in self.problems({"priority": 5})[0]
        assert self.found({"priority": 5}, replace(self.RULES, most_priority=6))[""]["memory.priority"] == 5
        assert self.found({"priority": 5}, rules_of(ANOLIS, ls={"priority": 7}))[""]["memory.priority"] == 5

    def test_without_a_nodeslo_it_has_no_effect(self):
        assert self.found({"minLimitPercent": 40}, MemoryQosRules(None, V2)) == {}

    def test_where_a_value_is_from_is_said(self):
        pod = memory_pod_of("LS", {"a": memory("1Gi")}, {"minLimitPercent": 40})
        least, low, *_ = pod_writes(pod, directory_of(pod), self.RULES).writes
        assert least.source == f"annotation koordinator.sh/memoryQOS minLimitPercent of {GIB} requested"
        assert low.source == f"NodeSLO resourceQOSStrategy.lsClass.memoryQOS.lowLimitPercent of {GIB} requested"


class TestDirectories:
    def test_each_has_the_sum_of_its_pods_and_the_one_above_that_of_all(self):
        pods = [
            memory_pod_of("LS", {"a": memory("1Gi")}),
            memory_pod_of("LS", {"a": memory("2Gi")}, uid="uid-2"),
            memory_pod_of("BE", {"a": memory("4Gi", 0, BATCH)}, uid="uid-3"),
            memory_pod_of("LSR", {"a": memory("8Gi")}, uid="uid-4", kube_qos="Guaranteed"),
        ]
        half = {"minLimitPercent": 50, "lowLimitPercent": 25}
        assert of_directories(rules_of(lsr=half, ls=half, be=half), *pods) == {
            ("kubepods", MIN): 15 * GIB // 2,
            ("kubepods", LOW): 15 * GIB // 2,
            ("kubepods/burstable", MIN): 3 * GIB // 2,
            ("kubepods/burstable", LOW): 3 * GIB // 2,
            ("kubepods/besteffort", MIN): 2 * GIB,
            ("kubepods/besteffort", LOW): 2 * GIB,
        }

    def test_one_whose_pods_are_left_alone_is_left_alone(self):
        pods = [memory_pod_of("LS", {"a": memory("1Gi")}), memory_pod_of("BE", {"a": {}}, uid="uid-3")]
        assert {path for path, _ in of_directories(rules_of(ls=LS), *pods)} == {"kubepods", "kubepods/burstable"}
        assert of_directories(rules_of(), *pods) == {}
        assert of_directories(MemoryQosRules(None, V2), *pods) == {}

    def test_one_above_that_has_less_is_named(self):
        pod = memory_pod_of("LS", {"a": memory("1Gi")})
        above = (
            Protection("", None, None),
            Protection("kubelet.slice", 100 * MIB, None),
            Protection("a", GIB, GIB),
        )
        wanted = directory_writes(
            view_of(pod, above=above), [pod_writes(pod, directory_of(pod), rules_of(ls=LS))], rules_of(ls=LS)
        )
        assert wanted.problems == (
            f"/kubelet.slice has memory.min {100 * MIB}, pods below it are to have {GIB * 20 // 100}: they get no more",
        )


class TestSoftLimits:
    RULES = replace(rules_of(V1, ls=LS), soft_limits=True)
    PODS = (
        memory_pod_of("LS", {"a": memory("1Gi")}),
        memory_pod_of("BE", {"a": memory("1Gi", 0, BATCH)}, uid="uid-2"),
        memory_pod_of("LS", {"a": memory("1Gi")}, {"policy": "none"}, uid="uid-3"),
    )

    def test_what_is_not_protected_is_reclaimed_first(self):
        assert of_directories(self.RULES, *self.PODS) == {
            ("kubepods/poduid-1", "memory.soft_limit_in_bytes"): GIB // 2,
            ("kubepods/poduid-2", "memory.soft_limit_in_bytes"): 0,
            ("kubepods/poduid-3", "memory.soft_limit_in_bytes"): 0,
        }

    def test_where_no_class_is_protected_or_it_is_not_wanted_or_there_is_no_such_file_none_is_set(self):
        assert of_directories(replace(self.RULES, qos=None), *self.PODS) == {}
        assert of_directories(replace(self.RULES, soft_limits=False), *self.PODS) == {}
        assert of_directories(replace(self.RULES, qos=memory_qos()), *self.PODS) == {}
        assert of_directories(replace(self.RULES, files=frozenset()), *self.PODS) == {}


class TestWantedOfNode:
    def test_pods_that_stay_the_same_are_not_worked_out_again(self):
        pods = tuple(memory_pod_of("LS", {"a": memory("1Gi")}, uid=f"uid-{number}") for number in range(3))
        wanted, view, rules = WantedOfNode(), view_of(*pods), rules_of(ls=LS)
        writes, problems = wanted.of(view, rules)
        assert (len(writes), problems) == (3 * 5 + 4, ())
        again, _ = wanted.of(view_of(*pods), rules_of(ls=LS))
        assert again is writes
        changed, _ = wanted.of(view_of(*pods[:2], memory_pod_of("LS", {"a": memory("2Gi")}, uid="uid-2")), rules)
        kept = {id(each) for each in writes}
        assert sum(id(each) in kept for each in changed) == 2 * 5
        other, _ = wanted.of(view, replace(rules, qos=memory_qos(ls={"minLimitPercent": 1})))
        assert other != writes

    def test_the_rules_are_the_nodes_and_the_operators(self):
        measured = MemoryQosMeasured(files=("memory.min", "memory.unknown"), qos=memory_qos(ls=LS))
        rules = memory_qos_rules(MemoryQosView(measured, (), GIB), MemoryQosSettings(True, 3, True))
        assert rules == MemoryQosRules(measured.qos, frozenset({CgroupFile.MEMORY_MIN}), GIB, True, 3, True)
