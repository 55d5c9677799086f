"""GroupIdentity, CPUNormalization, CoreSched, OOMScoreAdj: what each gives which pod."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from msgspec.structs import replace

from koordebpf.policy.cpu_normalization import RATIO_ANNOTATION, normalization_ratio
from koordebpf.slo.spec import parse_spec
from koordebpf.state.pods.hook_pods import hook_pod
from koordebpf.strategies.hooks.adjust import HookRules, container_adjustment, pod_adjustment
from koordebpf.strategies.hooks.group_identity import application_identity, directory_identity
from tests.support.values.hooks import batch, batch_pod_object, hook_pod_of
from tests.support.values.resized import whole


def qos_of(policy: str | None = None, **classes: dict[str, object]):
    strategy = {f"{name}Class": {"cpuQOS": {"enable": True, **given}} for name, given in classes.items()}
    if policy:
        strategy["policies"] = {"cpuPolicy": policy}
    spec, problems = parse_spec(json.dumps({"spec": {"resourceQOSStrategy": strategy}}).encode())
    assert not problems
    return spec.resourceQOSStrategy


class TestGroupIdentity:
    ALL = HookRules(hooks=frozenset({"GroupIdentity"}), qos=qos_of(lsr={}, ls={}, be={}))

    def identity(self, pod, rules=ALL):
        setting = pod_adjustment(pod, rules).bvt_warp_ns
        return None if setting is None else setting.value

    @pytest.mark.parametrize(
        ("qos", "kube_qos", "value"),
        [
            ("LSE", "Guaranteed", 2), ("LSR", "Guaranteed", 2), ("LS", "Burstable", 2), ("BE", "BestEffort", -1),
            ("", "Guaranteed", 2), ("", "Burstable", 2), ("", "BestEffort", -1),
        ],
    )  # fmt: skip
    def test_a_pod_has_that_of_its_class(self, qos, kube_qos, value):
        assert self.identity(hook_pod_of(qos, {"a": {}}, kube_qos=kube_qos)) == value

    def test_a_guaranteed_pod_has_that_of_ls_where_lsr_is_off(self):
        rules = replace(self.ALL, qos=qos_of(ls={"groupIdentity": 1}))
        assert self.identity(hook_pod_of("", {"a": {}}, kube_qos="Guaranteed"), rules) == 1
        assert self.identity(hook_pod_of("LSR", {"a": {}}, kube_qos="Guaranteed"), rules) == 0

    @pytest.mark.parametrize("rules", [
        HookRules(hooks=ALL.hooks), replace(ALL, qos=qos_of()), replace(ALL, has_bvt=False),
        replace(ALL, qos=qos_of("coreSched", ls={}, be={})),
    ])  # fmt: skip
    def test_no_value_where_no_class_has_it_or_the_kernel_has_none(self, rules):
        assert self.identity(hook_pod_of("LS", {"a": {}}, kube_qos="Burstable"), rules) is None
        assert directory_identity("Burstable", rules) is None

    @pytest.mark.parametrize(("written", "value"), [
        ('{"enable": true, "groupIdentity": -1}', -1), ('{"enable": false, "groupIdentity": 1}', 0), ("{}", 0),
        ('{"enable": true, "groupIdentity": 3}', None), ("none", None),
    ])  # fmt: skip
    def test_an_annotation_of_an_ls_pod_wins(self, written, value):
        pod = hook_pod_of("LS", {"a": {}}, kube_qos="Burstable", annotations={"koordinator.sh/cpuQOS": written})
        assert self.identity(pod) == value
        assert bool(pod_adjustment(pod, self.ALL).problems) is (value is None)
        other = hook_pod_of("BE", {"a": {}}, annotations={"koordinator.sh/cpuQOS": written})
        assert self.identity(other) == -1

    def test_directories_and_host_applications(self):
        found = {qos: directory_identity(qos, self.ALL) for qos in ("Guaranteed", "Burstable", "BestEffort")}
        assert {qos: each and each.value for qos, each in found.items()} == {
            "Guaranteed": 0, "Burstable": 2, "BestEffort": -1,
        }  # fmt: skip
        applications = {qos: application_identity(qos, self.ALL) for qos in ("LS", "BE", None)}
        assert {qos: each and each.value for qos, each in applications.items()} == {"LS": 2, "BE": -1, None: 0}

    def test_best_effort_pods_are_idle_by_a_setting_and_have_no_weight_then(self):
        pod = hook_pod_of("BE", {"a": batch(500, 1000, 1 << 30)})
        rules = HookRules(hooks=frozenset({"GroupIdentity", "BatchResource"}), idles_best_effort=True)
        made = pod_adjustment(pod, rules)
        assert made.cpu_idle is not None
        assert (made.cpu_idle.value, made.cpu_shares) == (1, None)
        assert pod_adjustment(pod, replace(rules, has_idle=False)).cpu_idle is None
        assert pod_adjustment(hook_pod_of("LS", {"a": {}}, kube_qos="Burstable"), rules).cpu_idle is None


class TestCpuNormalization:
    RULES = HookRules(hooks=frozenset({"CPUNormalization"}), normalization_ratio=1.2)
    CPU: ClassVar = {"limits": {"cpu": "1"}}

    def quotas(self, pod, rules=RULES):
        made = [pod_adjustment(pod, rules), *(container_adjustment(pod, each, rules) for each in pod.containers)]
        return [None if each.cfs_quota_us is None else each.cfs_quota_us.value for each in made]

    @pytest.mark.parametrize("qos", ["LS", ""])
    def test_quotas_are_divided_and_rounded_up(self, qos):
        pod = hook_pod_of(qos, {"a": self.CPU, "b": {"limits": {"cpu": "500m"}}}, kube_qos="Burstable")
        assert self.quotas(pod) == [125_000, 83_334, 41_667]

    @pytest.mark.parametrize("qos", ["LSR", "LSE", "SYSTEM", "BE"])
    def test_other_classes_keep_theirs(self, qos):
        assert self.quotas(hook_pod_of(qos, {"a": self.CPU})) == [None, None]

    def test_a_pod_with_cpus_of_its_own_keeps_it(self):
        annotations = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "1"}'}
        assert self.quotas(hook_pod_of("", {"a": self.CPU}, annotations=annotations)) == [None, None]

    def test_what_has_no_limit_gets_none(self):
        assert self.quotas(hook_pod_of("LS", {"a": self.CPU, "b": {}})) == [None, 83_334, None]

    def test_a_pod_with_a_limit_of_its_own_level_has_that_and_so_have_its_containers_without_one(self):
        limited = whole(batch_pod_object("LS", {"a": {}, "b": {}}, kube_qos="Burstable"), {"limits": {"cpu": "2"}})
        assert self.quotas(hook_pod(limited, "Burstable")) == [166_667] * 3

    def test_without_a_ratio_nothing_is_set(self):
        rules = HookRules(hooks=self.RULES.hooks)
        assert self.quotas(hook_pod_of("LS", {"a": self.CPU}), rules) == [None, None]

    @pytest.mark.parametrize(("text", "ratio", "is_wrong"), [
        ("1.20", 1.2, False), ("1", None, False), ("-1", None, False), ("0.5", None, False),
        ("0", None, True), ("-3", None, True), ("fast", None, True), ("nan", None, True), ("inf", None, True),
        ("1e9", None, True),
    ])  # fmt: skip
    def test_the_ratio_of_the_node(self, text, ratio, is_wrong):
        problems: list[str] = []
        assert normalization_ratio({RATIO_ANNOTATION: text}, problems) == ratio
        assert bool(problems) is is_wrong


class TestCoreSched:
    RULES = HookRules(hooks=frozenset({"CoreSched"}), qos=qos_of("coreSched", ls={"coreExpeller": True}, be={}))

    def group(self, pod, rules=RULES):
        setting = container_adjustment(pod, pod.containers[0], rules).core_sched_group
        return None if setting is None else setting.value

    @pytest.mark.parametrize(("qos", "kube_qos", "labels", "group"), [
        ("BE", "BestEffort", {}, "-"),
        ("LS", "Burstable", {}, "-expeller"),
        ("LS", "Burstable", {"koordinator.sh/core-sched-group-id": "g"}, "team/g-expeller"),
        ("BE", "BestEffort", {"koordinator.sh/core-sched-policy": "exclusive"}, "uid-1"),
        ("BE", "BestEffort", {"koordinator.sh/core-sched-policy": "none"}, ""),
        ("SYSTEM", "Burstable", {}, None),
        ("LSR", "Guaranteed", {}, None),  # its class is not enabled
        ("", "Guaranteed", {}, "-expeller"),
    ])  # fmt: skip
    def test_a_pods_group(self, qos, kube_qos, labels, group):
        assert self.group(hook_pod_of(qos, {"a": {}}, kube_qos=kube_qos, labels=labels)) == group

    def test_a_class_may_be_idle_as_a_whole(self):
        rules = HookRules(hooks=frozenset({"CoreSched", "BatchResource"}), qos=qos_of("coreSched", be={"schedIdle": 1}))
        made = pod_adjustment(hook_pod_of("BE", {"a": batch(500, 1000, 1 << 30)}), rules)
        assert made.cpu_idle is not None
        assert (made.cpu_idle.value, made.cpu_shares) == (1, None)
        assert pod_adjustment(hook_pod_of("LS", {"a": {}}, kube_qos="Burstable"), rules).cpu_idle is None
        assert pod_adjustment(hook_pod_of("BE", {"a": {}}), self.RULES).cpu_idle is None

    def test_none_under_another_policy(self):
        assert self.group(hook_pod_of("BE", {"a": {}}), replace(self.RULES, qos=qos_of(be={}))) is None


class TestOomScoreAdj:
    RULES = HookRules(hooks=frozenset({"OOMScoreAdj"}))
    ONE, EACH = "koordinator.sh/oom-score-adj", "koordinator.sh/oom-score-adj-spec"

    @pytest.mark.parametrize(("annotations", "scores", "problem"), [
        ({}, [None, None], None),
        ({ONE: "500"}, [500, 500], None),
        ({ONE: "500", EACH: '{"a": 100}'}, [100, 500], None),
        ({EACH: '{"a": 100, "ghost": 3}'}, [100, None], None),
        ({ONE: "1001"}, [None, None], "must be 0 to 1000"),
        ({ONE: "-1"}, [None, None], "must be 0 to 1000"),
        ({ONE: "many"}, [None, None], "must be 0 to 1000"),
        ({ONE: "9" * 5000}, [None, None], "must be 0 to 1000"),
        ({ONE: "5", EACH: '{"a": "x"}'}, [None, None], "oom-score-adj-spec"),
        ({ONE: "5", EACH: '{"a": 99999999999999999999}'}, [None, 5], "must be 0 to 1000"),
        ({ONE: "5", EACH: '{"a": ' + "9" * 6000 + "}"}, [None, None], "oom-score-adj-spec"),
    ])  # fmt: skip
    def test_the_annotations_of_a_pod(self, annotations, scores, problem):
        pod = hook_pod_of("LS", {"a": {}, "b": {}}, annotations=annotations)
        made = [container_adjustment(pod, each, self.RULES) for each in pod.containers]
        assert [None if each.oom_score_adj is None else each.oom_score_adj.value for each in made] == scores
        found = {each for adjustment in made for each in adjustment.problems}
        assert (problem is None and not found) or any(problem in each for each in found)
        assert all(len(each) < 400 for each in found)

    def test_an_operator_may_let_pods_protect_themselves(self):
        pod = hook_pod_of("LS", {"a": {}}, annotations={self.ONE: "-500"})
        rules = replace(self.RULES, least_oom_score_adj=-1000)
        setting = container_adjustment(pod, pod.containers[0], rules).oom_score_adj
        assert setting is not None
        assert setting.value == -500
