"""Short ways to write down a node with CPUs, what runs on them, and what was measured.

A frame is built and goes through its JSON, as by `tests.support.values.builders`. CPU time is in millicpu.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.kernel.cgroup.files import CgroupFile, parse_cpu_list
from koordebpf.kube.cache.objects import Container, NodeResourceTopology, NodeStatus, ObjectMeta, ResourceRequirements
from koordebpf.state.build import view_of_frame
from koordebpf.state.cpu.measured import (
    BeCgroup,
    BeQuota,
    CpuManager,
    CpuMeasured,
    CpuTopology,
    CpuUsage,
    CpuWindow,
    HostApplicationCpu,
    MissingDirectory,
    OtherPodsCpu,
    PodCpu,
)
from koordebpf.state.measured import LedgerView
from koordebpf.state.view import Frame, NodeView
from tests.support.values.builders import PodAndMeasure, frame
from tests.support.values.machines import machine

BE_ROOT = "kubepods/besteffort"
RESERVATION = "node.koordinator.sh/reservation"
SYSTEM_QOS = "node.koordinator.sh/system-qos-resource"
MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
POD_ALLOCATIONS = "node.koordinator.sh/pod-cpu-allocs"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"


def be_tree(
    cpus: Iterable[int] | None, *, pods: int = 1, containers: int = 1, of_containers: Iterable[int] | None = None
) -> tuple[BeCgroup, ...]:
    """Return the best-effort directory with pods and containers, parents first, all with the same CPUs."""
    held = None if cpus is None else tuple(sorted(cpus))
    inner = held if of_containers is None else tuple(sorted(of_containers))
    tree = [BeCgroup(BE_ROOT, "root", cpus=held)]
    for pod in range(pods):
        path = f"{BE_ROOT}/pod{pod}"
        tree.append(BeCgroup(path, "pod", f"be-{pod}", held))
        tree += [BeCgroup(f"{path}/c{n}", "container", f"be-{pod}", inner) for n in range(containers)]
    return tuple(tree)


def node(topology: CpuTopology | None = None, **more: Any) -> NodeView:
    """Return the view of a `cpu_frame`."""
    return view_of_frame(decode_frame(encode_frame(cpu_frame(topology, **more)), "frame"))


def cpu_frame(
    topology: CpuTopology | None = None,
    *,
    cpus: int = 8,
    node_used: int | None = 0,
    be_used: int | None = 0,
    used: Mapping[str, int] = {},
    others: OtherPodsCpu | None = None,
    be_pods_used: Mapping[str, int] = {},
    applications: Iterable[HostApplicationCpu] = (),
    isolated_used: int | msgspec.UnsetType = msgspec.UNSET,
    be_now: Iterable[int] | None = None,
    be_cgroups: tuple[BeCgroup, ...] | None = None,
    be_missing: tuple[MissingDirectory, ...] = (),
    parent: Iterable[int] | None = None,
    quota_us: int | None = None,
    period_us: int = 100_000,
    has_quota: bool = True,
    idle: int | None = 0,
    manager: CpuManager | None = None,
    pods: Iterable[PodAndMeasure] = (),
    strategy: Mapping[str, Any] | None = None,
    gates: Mapping[str, bool] = {},
    annotations: Mapping[str, Any] = {},
    topology_annotations: Mapping[str, Any] = {},
    capacity: str | None = None,
    allocatable: Mapping[str, str] | None = None,
    window: CpuWindow | None = None,
    ledger: LedgerView | None = None,
    now_ns: int | None = None,
    executor: Literal["api", "cgroup"] = "api",
) -> Frame:
    """Return a frame of a node that suppresses at 65 % with policy cpuset, unless `strategy` says otherwise.

    `used`: pods outside the best-effort directory, `others`: where they are measured together.
    `node_used` None: the first sampling, no usage is known yet.
    """
    topology = topology or machine(cores=cpus)
    usage = (
        None
        if node_used is None
        else CpuUsage(
            window_ns=1_000_000_000,
            node_used_millicpu=node_used,
            be_used_millicpu=be_used,
            pods=(
                *(PodCpu(uid, millicpu, False) for uid, millicpu in used.items()),
                *(PodCpu(uid, millicpu, True) for uid, millicpu in be_pods_used.items()),
            ),
            other_pods=others,
            host_applications=tuple(applications),
            isolated_used_millicpu=isolated_used,
        )
    )
    measured = CpuMeasured(
        topology=topology,
        usage=usage,
        be_cgroups=be_tree(topology.cpus if be_now is None else be_now) if be_cgroups is None else be_cgroups,
        be_parent_cpus=None if parent is None else tuple(parent),
        be_missing=be_missing,
        be_quota=BeQuota(quota_us, period_us) if has_quota else None,
        be_idle=idle,
        manager=manager,
        window=window,
    )
    recorded = frame(
        pods,
        threshold={"enable": True} | dict(strategy or {}),
        gates=gates,
        executor=executor,
    )
    assert recorded.node is not None
    amounts = {"memory": "1000Mi", "cpu": capacity or str(len(topology.online))}
    now_ns = now_ns or recorded.measured.now_ns
    numa = ObjectMeta(name="node-1", annotations=_written(topology_annotations))
    return replace(
        recorded,
        measured=replace(recorded.measured, cpu=measured, ledger=ledger, now_ns=now_ns),
        node=replace(
            recorded.node,
            metadata=ObjectMeta(name="node-1", annotations=_written(annotations)),
            status=NodeStatus(capacity=dict(amounts), allocatable=None if allocatable is None else dict(allocatable)),
        ),
        nodeResourceTopology=NodeResourceTopology(numa),
    )


def bound(each: PodAndMeasure, cpus: str) -> PodAndMeasure:
    """Return a pod that the scheduler bound to these CPUs, and which requests as many."""
    request = {"cpu": str(len(parse_cpu_list(cpus, "cpus")))}
    main = Container(name="main", resources=ResourceRequirements(requests=request))
    its = replace(each.pod, spec=replace(each.pod.spec, containers=[main]))
    return with_annotations(PodAndMeasure(its, each.measure), {RESOURCE_STATUS: json.dumps({"cpuset": cpus})})


def with_annotations(each: PodAndMeasure, annotations: Mapping[str, str]) -> PodAndMeasure:
    """Return a pod with these annotations beside its own."""
    meta = each.pod.metadata
    merged = {**(meta.annotations or {}), **annotations}
    return PodAndMeasure(replace(each.pod, metadata=replace(meta, annotations=merged)), each.measure)


def wanted(plan: Any, file: CgroupFile) -> dict[str, Any]:
    """Return what a plan wants of one file: path → value."""
    return {write.path: write.value for write in plan.desired.writes if write.file is file}


def _written(annotations: Mapping[str, Any]) -> dict[str, str] | None:
    return {name: json.dumps(value) for name, value in annotations.items()} or None
