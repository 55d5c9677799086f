"""Frames with memory QoS: what the whole decision wants of files, and that a replay decides the same."""

from __future__ import annotations

import json

import msgspec
import pytest

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kube.cache.objects import Node, NodeStatus, ObjectMeta, Pod
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.strategy import Empty
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import MeasuredParts
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.state.view import Frame
from koordebpf.strategies.memory_qos.decide import MEMORY_QOS
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured, MemoryQosSettings, Protection
from tests.support.values.cpu_nodes import cpu_frame
from tests.support.values.hooks import batch_pod_object
from tests.support.values.memory_qos import GIB, V1, V2, memory, memory_qos

MIN, LOW, HIGH = CgroupFile.MEMORY_MIN, CgroupFile.MEMORY_LOW, CgroupFile.MEMORY_HIGH
LS = memory_qos(ls={"minLimitPercent": 20, "lowLimitPercent": 50, "throttlingPercent": 80})


def pod(name: str, qos: str = "LS", own: object = None) -> Pod:
    annotations = {} if own is None else {"koordinator.sh/memoryQOS": json.dumps(own)}
    return batch_pod_object(
        qos, {"main": memory("1Gi", "2Gi")}, uid=f"uid-{name}", name=name, kube_qos="Burstable", annotations=annotations
    )


def frame(*pods: Pod, is_on: bool = True, **measured: object) -> Frame:
    directory = "kubepods/burstable"
    found = tuple(
        PodDirectory(each.uid, f"{directory}/pod{each.uid}", {"id-main": f"{directory}/pod{each.uid}/id-main"})
        for each in pods
    )
    base = cpu_frame()
    given = {"qos": LS, "files": tuple(sorted(each.value for each in V2)), **measured}
    made = MemoryQosMeasured(found, {"Burstable": directory, "Guaranteed": "kubepods"}, **given)  # type: ignore[arg-type]
    return msgspec.structs.replace(
        base,
        pods=pods,
        measured=base.measured.with_part(MEMORY_QOS.part, made),
        featureGates={**base.featureGates, "CgroupReconcile": is_on, "BECPUSuppress": False},
        node=Node(metadata=ObjectMeta(name="node"), status=NodeStatus(allocatable={"memory": "16Gi"})),
    )


def decided(made: Frame) -> NodePlan:
    plan = decide_node(view_of_frame(made), EvictSettings())
    # The same frame gives the same decision, also after it was written and read.
    again = decide_node(view_of_frame(decode_frame(encode_frame(made), "frame")), EvictSettings())
    assert again.strategies == plan.strategies
    return plan


def values(plan: NodePlan) -> dict[tuple[str, CgroupFile], Value]:
    return {(each.path, each.file): each.value for each in plan.strategies["memoryQos"].writes}


def test_pods_containers_and_directories_are_protected() -> None:
    plan = decided(frame(pod("a"), pod("b")))
    fifth, half, high = GIB * 20 // 100, GIB // 2, (GIB + GIB * 80 // 100) // 4096 * 4096
    expected: dict[tuple[str, CgroupFile], Value] = {}
    for path in ("kubepods", "kubepods/burstable"):
        expected |= {(path, MIN): 2 * fifth, (path, LOW): 2 * half}
    for name in ("a", "b"):
        path = f"kubepods/burstable/poduid-{name}"
        expected |= {(path, MIN): fifth, (path, LOW): half}
        expected |= {(f"{path}/id-main", MIN): fifth, (f"{path}/id-main", LOW): half, (f"{path}/id-main", HIGH): high}
    assert values(plan) == expected
    assert plan.strategies["memoryQos"].reason == "memory QoS: 6 cgroups"
    view = view_of_frame(frame(pod("a"), pod("b")))
    made = MEMORY_QOS.decide(view, MEMORY_QOS.measured_of(view), Empty(), MemoryQosSettings())
    assert made.protected_bytes == {
        file.value: {"Guaranteed": value, "Burstable": value} for file, value in ((MIN, 2 * fifth), (LOW, 2 * half))
    }


def test_with_its_gate_off_or_when_it_is_not_due_nothing_is_wanted() -> None:
    assert "memoryQos" not in decided(frame(pod("a"), is_on=False)).strategies
    made = frame(pod("a"))
    made = msgspec.structs.replace(made, measured=msgspec.structs.replace(made.measured, parts=MeasuredParts()))
    assert decided(made).strategies["memoryQos"].skipped == "not_due"


def test_a_pod_that_ended_is_protected_no_more() -> None:
    ended = pod("b")
    ended = msgspec.structs.replace(ended, status=msgspec.structs.replace(ended.status, phase="Succeeded"))
    assert values(decided(frame(pod("a"), ended)))["kubepods", LOW] == GIB // 2


def test_an_annotation_changes_its_own_pod_and_the_sums_above_alone() -> None:
    plain, other = values(decided(frame(pod("a"), pod("b")))), {"minLimitPercent": 100, "throttlingPercent": 0}
    asked = values(decided(frame(pod("a"), pod("b", own=other))))
    changed = {path for path, file in plain if plain[path, file] != asked[path, file]}
    own = "kubepods/burstable/poduid-b"
    assert changed == {own, f"{own}/id-main", "kubepods", "kubepods/burstable"}
    for written in ("[]", {"minLimitPercent": 10**9}, {"policy": "steal"}):
        assert values(decided(frame(pod("a"), pod("b", own=written)))) == plain


def test_what_protects_too_little_above_is_named() -> None:
    view = view_of_frame(frame(pod("a"), above=(Protection("kubelet", 0, None),)))
    assert MEMORY_QOS.decide(view, MEMORY_QOS.measured_of(view), Empty(), MemoryQosSettings()).problems == (
        f"/kubelet has memory.min 0, pods below it are to have {GIB * 20 // 100}: they get no more",
    )


@pytest.mark.parametrize(("soft_limits", "files"), [(False, V1), (True, V1), (False, V2), (False, frozenset())])
def test_on_cgroup_v1_it_is_said_that_nothing_protects_without_soft_limits(
    soft_limits: bool, files: frozenset[CgroupFile]
) -> None:
    view = view_of_frame(frame(pod("a"), files=tuple(sorted(each.value for each in files))))
    made = MEMORY_QOS.decide(view, MEMORY_QOS.measured_of(view), Empty(), MemoryQosSettings(soft_limits=soft_limits))
    is_named = any("cgroup v1 has no memory.min" in each for each in made.problems)
    assert is_named is (files is V1 and not soft_limits)
    assert bool(made.writes) is (files is V2 or soft_limits)
