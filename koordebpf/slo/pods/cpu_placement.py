"""CPUs that are bound to pods, reserved, or shared, by the annotations of Koordinator and kubelet. Pure.

What cannot be read says nothing, as in koordlet, and comes back as a problem for people: a typo in one pod's annotation
must not end the protection of the node.

Source: koordinator apis/extension/node_reservation.go, system_qos.go, numa_aware.go, cpu_manager.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError, KernelFileError
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kernel.proc.cpu_topology import Cpu

RESOURCE_STATUS_ANNOTATION = "scheduling.koordinator.sh/resource-status"  # of a Pod
RESERVATION_ANNOTATION = "node.koordinator.sh/reservation"  # of Node and NodeResourceTopology
SYSTEM_QOS_ANNOTATION = "node.koordinator.sh/system-qos-resource"  # of NodeResourceTopology, as those below
MANAGER_POLICY_ANNOTATION = "kubelet.koordinator.sh/cpu-manager-policy"
POD_ALLOCATIONS_ANNOTATION = "node.koordinator.sh/pod-cpu-allocs"
Annotations = Mapping[str, str] | None


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """CPUs that a pod has for itself; `koord_qos` is its raw label koordinator.sh/qosClass."""

    koord_qos: str
    cpus: tuple[int, ...]
    by_kubelet: bool = False


class SharePool(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """CPUs of one NUMA node that pods share, ascending; `socket` is that of the first of them."""

    socket: int
    numa_node: int
    cpus: tuple[int, ...]


class SharePools(msgspec.Struct, frozen=True):
    """Pools by socket and NUMA node, in this order. A NUMA node that pods have for themselves has none."""

    ls: tuple[SharePool, ...] = ()
    be: tuple[SharePool, ...] = ()

    @property
    def ls_cpus(self) -> tuple[int, ...]:
        """The CPUs of all LS pools, ascending."""
        return tuple(sorted(cpu for pool in self.ls for cpu in pool.cpus))

    @property
    def be_cpus(self) -> tuple[int, ...]:
        """The CPUs of all BE pools, ascending."""
        return tuple(sorted(cpu for pool in self.be for cpu in pool.cpus))


def set_apart(isolated: Iterable[int], shared: Collection[int]) -> tuple[int, ...]:
    """Return the isolated CPUs that are in no pool: those that kubelet's own `shared` set does not name."""
    return tuple(cpu for cpu in isolated if cpu not in shared)


def share_pools(
    online: Iterable[Cpu],
    bound: Iterable[BoundPod],
    reserved: Iterable[int] = (),
    system: Iterable[int] = (),
    isolated: Iterable[int] = (),
) -> SharePools:
    """Return the pools. CPUs that are not online are in none.

    Args:
        online: the CPUs of the node.
        bound: pods with CPUs of their own, by the scheduler (annotation resource-status) or by kubelet.
        reserved: of the Node's reservation annotation.
        system: of the system QoS class, where it has them for itself.
        isolated: as of `set_apart`: no tasks are balanced there, and a poll-mode driver may have them.
    """
    pods, cpus = tuple(bound), tuple(online)
    of_pods = {cpu for pod in pods for cpu in pod.cpus}
    withheld = withheld_from_be(pods, reserved, system, isolated)
    return SharePools(
        ls=_by_node(each for each in cpus if each.cpu not in withheld and each.cpu not in of_pods),
        be=_by_node(each for each in cpus if each.cpu not in withheld),
    )


def withheld_from_be(
    bound: Iterable[BoundPod],
    reserved: Iterable[int] = (),
    system: Iterable[int] = (),
    isolated: Iterable[int] = (),
) -> dict[int, str]:
    """Return the CPUs that best-effort pods never get, each with whose it is or why. Arguments as of `share_pools`."""
    withheld = dict.fromkeys(isolated, "isolated by the kernel")
    withheld |= dict.fromkeys(system, "of the system QoS class")
    withheld |= dict.fromkeys(reserved, "reserved")
    for pod in bound:
        if pod.by_kubelet:
            withheld |= dict.fromkeys(pod.cpus, "of pods that kubelet bound to them")
        elif pod.koord_qos == "LSE":
            withheld |= dict.fromkeys(pod.cpus, "of LSE pods")
    return withheld


def _by_node(cpus: Iterable[Cpu]) -> tuple[SharePool, ...]:
    nodes: dict[int, list[Cpu]] = {}
    for each in sorted(cpus, key=lambda cpu: cpu.cpu):
        nodes.setdefault(each.numa_node, []).append(each)
    pools = (SharePool(of[0].socket, node, tuple(each.cpu for each in of)) for node, of in nodes.items())
    return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.numa_node)))


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
        return decoder(kind).decode(written)
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
