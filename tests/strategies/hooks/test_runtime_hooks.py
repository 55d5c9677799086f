"""Frames with runtime hooks: what the whole decision wants of files, who wins, and that a replay decides the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kube.cache.objects import Node, NodeResourceTopology, ObjectMeta, Pod, PodCondition
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import MeasuredParts
from koordebpf.state.pods.hook_pods import ApplicationDirectory, HooksMeasured, PodDirectory
from koordebpf.state.view import Frame
from koordebpf.strategies.hooks.decide import HOOKS_PART
from tests.strategies.hooks.test_hooks_others import qos_of
from tests.support.values.cpu_nodes import cpu_frame
from tests.support.values.hooks import batch, batch_pod_object

GIB = 1 << 30
ALL = ("BatchResource", "CPUSetAllocator", "GroupIdentity", "CPUNormalization", "CoreSched", "OOMScoreAdj")
STATUS = "scheduling.koordinator.sh/resource-status"
POOLS = {"node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "0-5"}]'}


def be(name: str = "be", **given: Any) -> Pod:
    return batch_pod_object("BE", {"main": batch(500, 1000, GIB)}, uid=f"uid-{name}", name=name, **given)


def bound(name: str, qos: str, cpus: str) -> Pod:
    annotations = {STATUS: json.dumps({"cpuset": cpus})}
    limits = {"limits": {"cpu": "2"}}
    return batch_pod_object(
        qos, {"main": limits}, uid=f"uid-{name}", name=name, kube_qos="Guaranteed", annotations=annotations
    )


def shared(name: str, qos: str = "LS") -> Pod:
    return batch_pod_object(qos, {"main": {"limits": {"cpu": "1"}}}, uid=f"uid-{name}", name=name, kube_qos="Burstable")


def frame(
    *pods: Pod,
    gates: tuple[str, ...] = ALL,
    annotations: Mapping[str, str] | None = None,
    **measured: Any,
) -> Frame:
    """Return a frame of eight CPUs in which every pod has a directory, and its container one below."""
    found = tuple(
        PodDirectory(pod.uid, f"kubepods/pod{pod.uid}", {"id-main": f"kubepods/pod{pod.uid}/id-main"}) for pod in pods
    )
    base = cpu_frame()
    hooks = HooksMeasured(pods=found, online=tuple(range(8)), **measured)
    return msgspec.structs.replace(
        base,
        pods=pods,
        measured=base.measured.with_part(HOOKS_PART, hooks),
        featureGates={**base.featureGates, **dict.fromkeys(gates, True), "BECPUSuppress": False},
        nodeResourceTopology=NodeResourceTopology(metadata=ObjectMeta(name="node", annotations=dict(POOLS))),
        node=Node(metadata=ObjectMeta(name="node", annotations=dict(annotations or {}))),
    )


def decided(made: Frame) -> NodePlan:
    plan = decide_node(view_of_frame(made), EvictSettings())
    # The same frame gives the same decision, also after it was written and read.
    again = decide_node(view_of_frame(decode_frame(encode_frame(made), "frame")), EvictSettings())
    assert again.strategies == plan.strategies
    return plan


def values(plan: NodePlan, name: str) -> dict[tuple[str, CgroupFile], Value]:
    return {(each.path, each.file): each.value for each in plan.strategies[name].writes}


def test_each_hook_wants_its_own_files() -> None:
    plan = decided(frame(be(), bound("lsr", "LSR", "6-7"), shared("ls"), annotations={
        "node.koordinator.sh/cpu-normalization-ratio": "1.25",
    }))  # fmt: skip
    pod, container = "kubepods/poduid-be", "kubepods/poduid-be/id-main"
    assert values(plan, "batchResource") == {
        (pod, CgroupFile.CPU_SHARES): 512,
        (pod, CgroupFile.CPU_QUOTA): 80_000,
        (pod, CgroupFile.MEMORY_LIMIT): GIB,
        (container, CgroupFile.CPU_SHARES): 512,
        (container, CgroupFile.CPU_QUOTA): 80_000,
        (container, CgroupFile.MEMORY_LIMIT): GIB,
    }
    assert values(plan, "cpuSetAllocator") == {
        ("kubepods/poduid-lsr", CgroupFile.CPU_QUOTA): None,
        ("kubepods/poduid-lsr/id-main", CgroupFile.CPU_QUOTA): None,
        ("kubepods/poduid-lsr/id-main", CgroupFile.CPUSET_CPUS): frozenset({6, 7}),
        ("kubepods/poduid-ls/id-main", CgroupFile.CPUSET_CPUS): frozenset(range(6)),
    }
    assert values(plan, "cpuNormalization") == {
        ("kubepods/poduid-ls", CgroupFile.CPU_QUOTA): 80_000,
        ("kubepods/poduid-ls/id-main", CgroupFile.CPU_QUOTA): 80_000,
    }


def test_isolated_cpus_are_in_no_pool_of_koordlets_either() -> None:
    plan = decided(frame(shared("ls"), isolated=(4, 5)))
    assert values(plan, "cpuSetAllocator")["kubepods/poduid-ls/id-main", CgroupFile.CPUSET_CPUS] == frozenset(range(4))


def test_limits_that_are_not_known_any_more_are_wanted_as_before() -> None:
    # GIVEN a pod with a normalized quota, and a batch pod into which a container was injected
    ratio = {"node.koordinator.sh/cpu-normalization-ratio": "1.25"}
    both = {"main": batch(500, 1000, GIB), "injected": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    mixed = batch_pod_object("BE", both, uid="uid-mixed", name="mixed", kube_qos="Burstable")
    pods = [shared("held"), mixed]
    before = decided(frame(*pods, annotations=ratio))
    assert values(before, "cpuNormalization")["kubepods/poduid-held", CgroupFile.CPU_QUOTA] == 80_000
    assert values(before, "batchResource")["kubepods/poduid-mixed", CgroupFile.MEMORY_LIMIT] == 2 * GIB
    # WHEN they are resized, and the kubelet refuses and tells no limits
    pending = PodCondition(type="PodResizePending", status="True", reason="Infeasible")
    refused = [
        msgspec.structs.replace(each, status=msgspec.structs.replace(each.status, conditions=[pending]))
        for each in pods
    ]
    # THEN no limit is taken away, in no later round either
    for _ in range(3):
        now = decided(frame(*refused, annotations=ratio))
        for name in ("cpuNormalization", "batchResource"):
            limits = {key: value for key, value in values(before, name).items() if key[1] is not CgroupFile.CPU_SHARES}
            assert limits.items() <= values(now, name).items()
        refused = [msgspec.structs.replace(each) for each in refused]


@pytest.mark.parametrize("container_id", ["", "containerd://", "id-main"])
def test_a_container_whose_status_has_no_id_gets_nothing_and_its_pod_what_it_asks_for(container_id: str) -> None:
    pod = be()
    statuses = [msgspec.structs.replace(each, containerID=container_id) for each in pod.status.containerStatuses or ()]
    pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, containerStatuses=statuses))
    assert values(decided(frame(pod)), "batchResource") == {
        ("kubepods/poduid-be", CgroupFile.CPU_SHARES): 512,
        ("kubepods/poduid-be", CgroupFile.CPU_QUOTA): 100_000,
        ("kubepods/poduid-be", CgroupFile.MEMORY_LIMIT): GIB,
    }


def test_no_file_is_wanted_by_two_hooks() -> None:
    pods = [be(), bound("lse", "LSE", "6"), bound("none", "", "7"), shared("ls"), shared("any", "")]
    plan = decided(frame(*pods, annotations={"node.koordinator.sh/cpu-normalization-ratio": "2"}))
    wanted = [key for name in plan.strategies for key in values(plan, name)]
    assert len(wanted) == len(set(wanted)) > 10


def test_a_round_in_which_hooks_are_not_due_leaves_what_was_written() -> None:
    made = frame(be())
    made = msgspec.structs.replace(made, measured=msgspec.structs.replace(made.measured, parts=MeasuredParts()))
    plan = decided(made)
    assert {plan.strategies[name].skipped for name in ("batchResource", "cpuSetAllocator")} == {"not_due"}


def test_a_hook_whose_gate_is_off_wants_nothing() -> None:
    plan = decided(frame(be(), bound("lsr", "LSR", "6-7"), gates=("CPUSetAllocator",)))
    assert "batchResource" not in plan.strategies
    assert values(plan, "cpuSetAllocator")


def test_cpus_that_were_just_bound_are_in_no_pool() -> None:
    """The object that has the pools is written after the pod was bound."""
    plan = decided(frame(bound("lsr", "LSR", "5"), shared("ls")))
    assert values(plan, "cpuSetAllocator")["kubepods/poduid-ls/id-main", CgroupFile.CPUSET_CPUS] == frozenset(range(5))


@pytest.mark.parametrize("has_bvt", [True, False])
def test_identities_of_pods_directories_and_applications(has_bvt: bool) -> None:
    made = frame(
        be(), shared("ls"),
        gates=("GroupIdentity",), has_bvt=has_bvt, qos=qos_of(lsr={}, ls={}, be={}),
        directories={"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"},
        applications=(ApplicationDirectory("nginx", "host-latency-sensitive/nginx", "LS"),),
    )  # fmt: skip
    identities = {path: value for (path, _), value in values(decided(made), "groupIdentity").items()}
    expected = {
        "kubepods": 0, "kubepods/burstable": 2, "kubepods/besteffort": -1,
        "host-latency-sensitive/nginx": 2, "kubepods/poduid-be": -1, "kubepods/poduid-ls": 2,
    }  # fmt: skip
    assert identities == (expected if has_bvt else {})


def test_host_applications_run_on_all_share_pools() -> None:
    applications = (ApplicationDirectory("nginx", "host/nginx", "LS"), ApplicationDirectory("job", "host/job", "BE"))
    made = frame(gates=("CPUSetAllocator",), applications=applications)
    assert values(decided(made), "cpuSetAllocator") == {
        ("host/nginx", CgroupFile.CPUSET_CPUS): frozenset(range(6)),
    }


def test_a_pod_that_cannot_be_read_takes_nothing_from_another() -> None:
    hostile = be("bad", annotations={STATUS: "nonsense"})
    alone, beside = decided(frame(be())), decided(frame(be(), hostile))
    wanted = values(beside, "batchResource")
    assert {key: wanted[key] for key in values(alone, "batchResource")} == values(alone, "batchResource")
    assert not any("uid-bad" in path for path, _ in values(beside, "cpuSetAllocator"))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Unknown"])
def test_a_pod_that_runs_no_more_is_left_alone(phase: str) -> None:
    pod = be()
    ended = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase))
    assert values(decided(frame(ended)), "batchResource") == {}
