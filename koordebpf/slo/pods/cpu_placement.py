"""CPUs that are bound to pods or reserved, by the annotations of Koordinator and kubelet.

What cannot be read says nothing, as in koordlet, and comes back as a problem for people: a typo in one pod's annotation
must not end the protection of the node.

Source: koordinator apis/extension/node_reservation.go, system_qos.go, numa_aware.go, cpu_manager.go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError, KernelFileError
from koordebpf.kernel.cgroup.files import parse_cpu_list

RESOURCE_STATUS_ANNOTATION = "scheduling.koordinator.sh/resource-status"  # of a Pod
RESERVATION_ANNOTATION = "node.koordinator.sh/reservation"  # of Node and NodeResourceTopology
SYSTEM_QOS_ANNOTATION = "node.koordinator.sh/system-qos-resource"  # of NodeResourceTopology, as those below
MANAGER_POLICY_ANNOTATION = "kubelet.koordinator.sh/cpu-manager-policy"
POD_ALLOCATIONS_ANNOTATION = "node.koordinator.sh/pod-cpu-allocs"

Annotations = Mapping[str, str] | None


class PodCpus(msgspec.Struct, frozen=True):
    """What the scheduler bound a pod to."""

    cpus: tuple[int, ...] = ()
    has_numa: bool = False
    problem: str | None = None


class NodeCpus(msgspec.Struct, frozen=True):
    """What is set aside on the node. `reserved_cpu` is the quantity as written; `pinned`: uid → CPUs, by kubelet."""

    reserved_cpus: tuple[int, ...] = ()
    reserved_cpu: str | None = None
    system_cpus: tuple[int, ...] = ()
    is_static: bool = False
    pinned: dict[str, tuple[int, ...]] = {}
    problems: tuple[str, ...] = ()


class _Reservation(msgspec.Struct):
    resources: dict[str, str | int | float] | None = None
    reservedCPUs: str = ""


class _SystemQos(msgspec.Struct):
    cpuset: str = ""
    cpusetExclusive: bool | None = None  # absent: they are its own


class _ManagerPolicy(msgspec.Struct):
    policy: str = ""


class _PodAllocation(msgspec.Struct):
    uid: str = ""
    cpuset: str = ""


class _ResourceStatus(msgspec.Struct):
    cpuset: str = ""
    numaNodeResources: list[Any] | None = None


def pod_cpus(annotations: Annotations, request_millicpu: int) -> PodCpus:
    """Return what a pod's annotation resource-status binds it to; `request_millicpu` is what it requests."""
    problems: list[str] = []
    status = _read(annotations, RESOURCE_STATUS_ANNOTATION, _ResourceStatus, problems)
    if status is None:
        return PodCpus(problem=problems[0] if problems else None)
    cpus = _listed(status.cpuset, RESOURCE_STATUS_ANNOTATION, problems)
    if (problem := too_many_cpus(cpus, request_millicpu)) is not None:
        return PodCpus(problem=problem)
    return PodCpus(cpus, bool(status.numaNodeResources), problems[0] if problems else None)


def too_many_cpus(cpus: Collection[int], request_millicpu: int) -> str | None:
    """Return why the annotation resource-status is not believed; None: it is.

    The scheduler binds a pod to as many CPUs as it requests, or fewer on a node with amplified CPUs. Its quota of the
    cluster is of requests: who writes the annotation itself must not have the CPUs of others for nothing.
    """
    if len(cpus) * 1000 < request_millicpu + 1000:
        return None
    asked = f"annotation {RESOURCE_STATUS_ANNOTATION}: binds the pod to {len(cpus)} CPUs"
    return f"{asked}, and it requests {request_millicpu / 1000:g}: it is passed over"


def node_cpus(node: Annotations, topology: Annotations) -> NodeCpus:
    """Return what the annotations of Node and NodeResourceTopology set aside; reservations of both count."""
    problems: list[str] = []
    reserved: set[int] = set()
    amount: str | None = None
    for either in (node, topology):
        written = _read(either, RESERVATION_ANNOTATION, _Reservation, problems)
        if written is None:
            continue
        reserved.update(_listed(written.reservedCPUs, RESERVATION_ANNOTATION, problems))
        if amount is None and written.resources and "cpu" in written.resources:
            amount = str(written.resources["cpu"])
    system = _read(topology, SYSTEM_QOS_ANNOTATION, _SystemQos, problems)
    manager = _read(topology, MANAGER_POLICY_ANNOTATION, _ManagerPolicy, problems)
    allocations = _read(topology, POD_ALLOCATIONS_ANNOTATION, list[_PodAllocation], problems) or []
    return NodeCpus(
        reserved_cpus=tuple(sorted(reserved)),
        reserved_cpu=amount,
        system_cpus=_listed(system.cpuset, SYSTEM_QOS_ANNOTATION, problems)
        if system is not None and system.cpusetExclusive is not False
        else (),
        is_static=manager is not None and manager.policy == "static",
        pinned={each.uid: _listed(each.cpuset, POD_ALLOCATIONS_ANNOTATION, problems) for each in allocations},
        problems=tuple(problems),
    )


def read_annotation(annotations: Annotations, name: str, kind: Any) -> Any:
    """Return what an annotation says, as `kind`; None: it is absent or empty.

    Raises:  ConfigError: it is not of its form.
    """
    written = (annotations or {}).get(name)
    if not written:
        return None
    try:
        return msgspec.json.decode(written, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"annotation {name}", written[:80], str(error)) from None


def _read(annotations: Annotations, name: str, kind: Any, problems: list[str]) -> Any:
    try:
        return read_annotation(annotations, name, kind | None)  # Go writes a nil slice or pointer as null
    except ConfigError as error:
        problems.append(str(error))
        return None


def _listed(text: str, name: str, problems: list[str]) -> tuple[int, ...]:
    try:
        return tuple(sorted(parse_cpu_list(text, f"annotation {name}")))
    except KernelFileError as error:
        problems.append(str(error))
        return ()
