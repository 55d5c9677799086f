"""What memory QoS wants of a pod, for `koordebpf pod explain`."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.report.hooks.memory_settings import with_memory_settings
from koordebpf.report.hooks.pod_settings import PodSetting, PodSettings
from koordebpf.state.memory_qos.measured import Protection
from tests.support.values.memory_qos import GIB, V1, memory, memory_pod_of, rules_of
from tests.unit.policy.test_memory_qos_rules import view_of

HOOKED = PodSetting("kubepods/poduid-1", "cpu.shares", "BatchResource", "a request", 512)
PODS = [PodSettings("uid-1", "team", "web", None, (HOOKED,)), PodSettings("uid-9", "team", "other")]
POD = memory_pod_of("LS", {"a": memory("1Gi")}, {"lowLimitPercent": 200})


def test_a_pod_has_them_beside_what_hooks_want() -> None:
    view = view_of(POD, above=(Protection("kubelet", 0, None),))
    found, other = with_memory_settings(PODS, view, rules_of(ls={"minLimitPercent": 50}))
    assert found.path == "kubepods/poduid-1"
    assert found.settings[0] is HOOKED
    (least,) = [each for each in found.settings if each.file == "memory.min" and each.path == found.path]
    assert (least.value, least.hook) == (GIB // 2, "CgroupReconcile")
    (high,) = [each for each in found.settings if each.file == "memory.high"]
    assert (high.value, high.path) == (None, "kubepods/poduid-1/a")
    assert found.problems[0].startswith("pod team/web: annotation koordinator.sh/memoryQOS")
    assert found.problems[1].startswith("/kubelet has memory.min 0")
    assert other is PODS[1]


def test_its_soft_limit_is_among_them() -> None:
    rules = replace(rules_of(V1, ls={"minLimitPercent": 50}), soft_limits=True)
    found, _ = with_memory_settings(PODS, view_of(POD), rules)
    assert [each.file for each in found.settings] == ["cpu.shares", "memory.soft_limit_in_bytes"]


def test_before_the_first_round_there_are_none() -> None:
    assert with_memory_settings(PODS, None, rules_of()) == PODS
