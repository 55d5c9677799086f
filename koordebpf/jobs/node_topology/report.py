"""What the NodeResourceTopology of a node is to say, from what is known of the node. Pure.

Source: koordinator pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go, apis/extension/numa_aware.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError, KernelFileError
from koordebpf.kernel.cgroup.files import format_cpu_list, parse_cpu_list
from koordebpf.kernel.host.numa_nodes import NumaNode
from koordebpf.kernel.host.processors import CpuModel, Processor
from koordebpf.kernel.proc.cpu_topology import Cpu
from koordebpf.kube.cache.objects import Node
from koordebpf.kube.clients.kubelet import KubeletConfig
from koordebpf.quantity import cpu_text, memory_text, quantity_bytes, quantity_millicpu
from koordebpf.slo.pods.cpu_placement import (
    MANAGER_POLICY_ANNOTATION,
    POD_ALLOCATIONS_ANNOTATION,
    RESERVATION_ANNOTATION,
    SYSTEM_QOS_ANNOTATION,
    BoundPod,
    SharePool,
    SharePools,
    set_apart,
    share_pools,
)
from koordebpf.slo.pods.resource_status import BE_SHARED_POOLS_ANNOTATION, SHARED_POOLS_ANNOTATION
from koordebpf.state.cpu.measured import CpuManager
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import FINISHED_PHASES
from koordebpf.units import GIB, MIB

NUMA_RESERVATION_LABEL = "node.koordinator.sh/enable-numa-reservation"
HUGE_PAGES: Mapping[int, str] = {2 * MIB: "hugepages-2Mi", GIB: "hugepages-1Gi"}
MANAGED = ("cpu", "memory", *HUGE_PAGES.values())
_MILLI = 1000
Place = Callable[[Processor], int]
BASIC_INFO_ANNOTATION = "node.koordinator.sh/cpu-basic-info"
CPU_TOPOLOGY_ANNOTATION = "node.koordinator.sh/cpu-topology"
# By kubelet's topologyManagerPolicy; behind it comes the scope.
_POLICIES = {"single-numa-node": "SingleNUMANode", "restricted": "Restricted", "best-effort": "BestEffort"}
_SCOPES = {"container": "ContainerLevel", "pod": "PodLevel"}
_KEPT_BY_KOORDINATOR = frozenset({"LS", "BE"})  # its hooks place them, whatever kubelet gave them


# What a node is made of: its CPUs, their model, its NUMA nodes.


class NodeInfo(msgspec.Struct, frozen=True):
    """One node. `numa`: by number; none: the kernel knows no NUMA, and everything is node 0.

    `isolated`: CPUs that the kernel keeps from ordinary tasks. They are in no pool, and count in their zone.
    """

    processors: tuple[Processor, ...]
    numa: tuple[NumaNode, ...] = ()
    model: CpuModel = CpuModel()
    isolated: tuple[int, ...] = ()

    @property
    def cpus(self) -> tuple[Cpu, ...]:
        """The CPUs by number, as share pools take them."""
        return tuple(
            Cpu(each.cpu, each.core, each.socket, each.numa_node)
            for each in sorted(self.processors, key=lambda each: each.cpu)
        )

    def of_node(self, node: int) -> tuple[int, ...]:
        """Return the CPUs of a NUMA node, ascending."""
        return tuple(sorted(each.cpu for each in self.processors if each.numa_node == node))


# The report.


class ZoneResource(msgspec.Struct, frozen=True):
    """One resource of a zone, as v1alpha1.ResourceInfo without what is available: that is what is allocatable."""

    name: str
    capacity: str
    allocatable: str


class Zone(msgspec.Struct, frozen=True):
    """One NUMA node, as v1alpha1.Zone of type Node."""

    name: str
    resources: tuple[ZoneResource, ...]


def zones_of(info: NodeInfo, node: Node) -> tuple[Zone, ...]:
    """Return one zone a NUMA node, by name; of a kernel without NUMA, none is known but that of its CPUs.

    With the label of reservation by NUMA node, what kubelet keeps from the node is taken from its zones in equal parts.

    Raises:  ConfigError: a quantity of the Node's status is none.
    """
    labels = node.metadata.labels or {}
    numbers = sorted({each.node for each in info.numa} | {each.numa_node for each in info.processors})
    cpu_kept = memory_kept = 0
    if labels.get(NUMA_RESERVATION_LABEL) == "true":
        # Rounded up: together they are at least what the node keeps.
        cpu_kept = -(-_kept(node, "cpu") // len(numbers))
        memory_kept = -(-_kept(node, "memory") // len(numbers))
    return tuple(sorted((_zone(info, each, cpu_kept, memory_kept) for each in numbers), key=lambda each: each.name))


def _zone(info: NodeInfo, number: int, cpu_kept: int, memory_kept: int) -> Zone:
    numa = next((each for each in info.numa if each.node == number), None)
    millicpu = len(info.of_node(number)) * _MILLI
    pages = dict(numa.huge_pages) if numa is not None else {}
    huge = {name: pages.get(size, 0) * size for size, name in HUGE_PAGES.items()}
    # Pages of other sizes are no resource of Kubernetes', and their memory is no pod's either.
    memory = max((numa.memory_bytes or 0) - numa.huge_bytes, 0) if numa is not None else 0
    resources = [
        ZoneResource("cpu", cpu_text(millicpu), cpu_text(max(millicpu - cpu_kept, 0))),
        ZoneResource("memory", memory_text(memory), memory_text(max(memory - memory_kept, 0))),
        *(ZoneResource(name, memory_text(size), memory_text(size)) for name, size in huge.items()),
    ]
    return Zone(f"node-{number}", tuple(sorted(resources, key=lambda each: each.name)))


# Of cpu in millicpu, of memory in bytes; 0 where capacity or allocatable is not known.
def _kept(node: Node, name: str) -> int:
    capacity, allocatable = node.status.capacity or {}, node.status.allocatable or {}
    if name not in capacity or name not in allocatable:
        return 0
    amount = quantity_millicpu if name == "cpu" else quantity_bytes
    of = (amount(each[name], f"node.status.{name}") for each in (capacity, allocatable))
    whole, left = of
    return max(whole - left, 0)


def same_amount(name: str, one: object, other: object) -> bool:
    """Tell whether two quantities are the same; what is none is equal to nothing."""
    amount = quantity_millicpu if name == "cpu" else quantity_bytes
    try:
        return amount(one) == amount(other)  # type: ignore[arg-type]  # checked by it
    except ConfigError:
        return False


def choose_by_topology(processors: Iterable[Processor], count: int) -> tuple[int, ...]:
    """Return `count` CPUs as kubelet's static policy chooses them, ascending: whole sockets, whole cores, single CPUs.

    All of them where there are not so many; then koordlet takes none.

    Source:  k8s.io/kubernetes pkg/kubelet/cm/cpumanager/cpu_assignment.go, takeByTopologyNUMAPacked.
    """
    every = tuple(sorted(processors, key=lambda each: each.cpu))
    taken: list[Processor] = []
    for place in (_socket, _core):
        size = len(every) // max(len({place(each) for each in every}), 1)
        for group in _free_groups(every, taken, place):
            if count - len(taken) >= size:
                taken += group
    left = [each for each in every if each not in taken]
    sockets = {each.socket for each in taken}
    left.sort(
        key=lambda each: (
            each.socket not in sockets,
            sum(one.socket == each.socket for one in left),
            sum(one.core == each.core for one in left),
            each.socket,
            each.core,
            each.cpu,
        )
    )
    taken += left[: max(count - len(taken), 0)]
    return tuple(sorted(each.cpu for each in taken))


def _socket(each: Processor) -> int:
    return each.socket


def _core(each: Processor) -> int:
    return each.core


# Those of which no CPU is taken; of cores, first those of the socket that has the fewest free ones.
def _free_groups(every: tuple[Processor, ...], taken: list[Processor], place: Place) -> list[list[Processor]]:
    used = {place(each) for each in taken}
    groups: dict[int, list[Processor]] = {}
    for each in every:
        if place(each) not in used:
            groups.setdefault(place(each), []).append(each)
    free_on: dict[int, int] = {}
    for group in groups.values():
        free_on[group[0].socket] = free_on.get(group[0].socket, 0) + len(group)
    return sorted(groups.values(), key=lambda group: (free_on[group[0].socket], group[0].socket, place(group[0])))


class TopologyInput(msgspec.Struct, frozen=True):
    """What is known of a node. `config`, `manager`: of kubelet, None where it cannot be asked."""

    info: NodeInfo
    node: Node
    pods: tuple[PodFacts, ...] = ()
    config: KubeletConfig | None = None
    manager: CpuManager | None = None


class Report(msgspec.Struct, frozen=True):
    """What the object is to say of the fields that are managed. `problems`: what could not be read and says nothing.

    An annotation that is left out is not known: what the object says of it stays. `pools`: as two of the annotations.
    """

    annotations: dict[str, str]
    labels: dict[str, str]
    policy: str
    zones: tuple[Zone, ...]
    problems: tuple[str, ...] = ()
    pools: SharePools = SharePools()


def topology_report(known: TopologyInput) -> Report:
    """Return what the object is to say; what is written on it now has no part in it.

    Raises:  ConfigError: a quantity of the Node's status is none.
    Cost:    0.2 ms with 128 CPUs and 110 pods; the object has 9 KB then.
    """
    problems: list[str] = []
    annotations = known.node.metadata.annotations or {}
    reservation = _object(annotations, RESERVATION_ANNOTATION, problems)
    reserved = _reserve(reservation, known.info, problems)
    system = _object(annotations, SYSTEM_QOS_ANNOTATION, problems)
    exclusive = _cpus(system.get("cpuset", ""), SYSTEM_QOS_ANNOTATION, problems)
    if system.get("cpusetExclusive") is False:
        exclusive = ()
    by_kubelet = _by_kubelet(known)
    bound = [
        *(BoundPod("", cpus, by_kubelet=True) for _, cpus in by_kubelet),
        *(BoundPod(pod.koord_qos, pod.cpus.cpus) for pod in known.pods if _is_bound(pod)),
    ]
    isolated = set_apart(known.info.isolated, known.manager.shared if known.manager is not None else ())
    pools = share_pools(known.info.cpus, bound, reserved, exclusive, isolated)
    labels = known.node.metadata.labels or {}
    return Report(
        annotations={
            BASIC_INFO_ANNOTATION: _json(_basic_info(known.info)),
            CPU_TOPOLOGY_ANNOTATION: _json({"detail": _detail(known.info)}),
            SHARED_POOLS_ANNOTATION: _pools(pools.ls),
            BE_SHARED_POOLS_ANNOTATION: _pools(pools.be),
            **_of_kubelet(known, by_kubelet, problems),
            RESERVATION_ANNOTATION: _json(reservation),
            SYSTEM_QOS_ANNOTATION: _json(system),
        },
        labels={NUMA_RESERVATION_LABEL: labels[NUMA_RESERVATION_LABEL]} if labels.get(NUMA_RESERVATION_LABEL) else {},
        policy=topology_policy(known.config),
        zones=zones_of(known.info, known.node),
        problems=tuple(problems),
        pools=pools,
    )


def topology_policy(config: KubeletConfig | None) -> str:
    """Return v1alpha1.TopologyManagerPolicy of kubelet's policy and scope; None: there is none, or it is not known."""
    if config is None:
        return "None"
    policy, scope = _POLICIES.get(config.topologyManagerPolicy), _SCOPES.get(config.topologyManagerScope)
    return f"{policy}{scope}" if policy and scope else "None"


def _is_bound(pod: PodFacts) -> bool:
    return bool(pod.cpus.cpus) and pod.phase not in FINISHED_PHASES


# By UID, what kubelet's static policy gave to pods that the scheduler did not bind.
def _by_kubelet(known: TopologyInput) -> list[tuple[str, tuple[int, ...]]]:
    if known.manager is None or (known.config is not None and known.config.cpuManagerPolicy not in ("static", "")):
        return []
    ours = {pod.uid for pod in known.pods if pod.koord_qos in _KEPT_BY_KOORDINATOR or pod.cpus.cpus}
    return sorted((uid, cpus) for uid, cpus in known.manager.pinned.items() if cpus and uid not in ours)


# Nothing where kubelet cannot be asked in any way: another that could may have written them.
def _of_kubelet(
    known: TopologyInput, given: Iterable[tuple[str, Collection[int]]], problems: list[str]
) -> dict[str, str]:
    if known.config is None and known.manager is None:
        return {}
    return {
        MANAGER_POLICY_ANNOTATION: _json(_manager_policy(known, problems)),
        POD_ALLOCATIONS_ANNOTATION: _json(_allocations(known.pods, given) or None),
    }


def _allocations(pods: Iterable[PodFacts], given: Iterable[tuple[str, Collection[int]]]) -> list[dict[str, Any]]:
    names = {pod.uid: {"namespace": pod.namespace, "name": pod.name} for pod in pods}
    return [
        {**names.get(uid, {}), "uid": uid, "cpuset": format_cpu_list(cpus), "managedByKubelet": True}
        for uid, cpus in given
    ]


# Kubelet's own reservation stays in the pools: burstable pods need some CPUs.
def _manager_policy(known: TopologyInput, problems: list[str]) -> dict[str, Any]:
    config = known.config
    if config is None:
        return {"policy": known.manager.policy} if known.manager is not None else {}
    said: dict[str, Any] = {"policy": config.cpuManagerPolicy} if config.cpuManagerPolicy else {}
    if config.cpuManagerPolicyOptions:
        said["options"] = config.cpuManagerPolicyOptions
    if config.cpuManagerPolicy == "static":
        cpus: Sequence[int]
        if config.reservedSystemCPUs:
            cpus = _cpus(config.reservedSystemCPUs, "kubelet's reservedSystemCPUs", problems)
        else:
            millicpu = sum(
                _millicpu((kept or {}).get("cpu", "0"), f"kubelet's {name}.cpu", problems)
                for name, kept in (("kubeReserved", config.kubeReserved), ("systemReserved", config.systemReserved))
            )
            cpus = choose_by_topology(known.info.processors, -(-millicpu // _MILLI))
        if cpus:
            said["reservedCPUs"] = format_cpu_list(cpus)
    return said


# CPUs by number replace a quantity, which stands for CPUs that kubelet's rule chooses. Changes `reservation`.
def _reserve(reservation: dict[str, Any], info: NodeInfo, problems: list[str]) -> tuple[int, ...]:
    where = RESERVATION_ANNOTATION
    if reservation.get("reservedCPUs"):
        cpus = _cpus(reservation["reservedCPUs"], where, problems)
    else:
        resources = reservation.get("resources")
        amount = resources.get("cpu", "0") if isinstance(resources, dict) else "0"
        count = -(-_millicpu(amount, f"annotation {where} resources.cpu", problems) // _MILLI)
        cpus = choose_by_topology(info.processors, count) if 0 < count <= len(info.processors) else ()
    if cpus:
        reservation["reservedCPUs"] = format_cpu_list(cpus)
    return cpus


def _basic_info(info: NodeInfo) -> dict[str, Any]:
    model = info.model
    said = {
        "cpuModel": model.model,
        "hyperThreadEnabled": model.has_smt,
        "turboEnabled": model.has_turbo,
        "catL3CbmMask": model.l3_mask,
        "vendorID": model.vendor,
    }
    return {name: value for name, value in said.items() if value}


def _detail(info: NodeInfo) -> list[dict[str, int]]:
    return [
        {"id": each.cpu, "core": each.core, "socket": each.socket, "node": each.numa_node}
        | ({"l3": each.l3} if each.l3 else {})
        for each in sorted(info.processors, key=lambda each: each.cpu)
    ]


def _pools(pools: tuple[SharePool, ...]) -> str:
    written = [{"socket": each.socket, "node": each.numa_node, "cpuset": format_cpu_list(each.cpus)} for each in pools]
    return _json(written or None)


def _object(annotations: Mapping[str, str], name: str, problems: list[str]) -> dict[str, Any]:
    written = annotations.get(name)
    if not written:
        return {}
    try:
        return dict(decoder(dict[str, Any] | None).decode(written) or {})
    except (msgspec.DecodeError, RecursionError) as error:
        problems.append(f"annotation {name} of the Node: {written[:80]!r}: {error}")
        return {}


def _cpus(text: object, where: str, problems: list[str]) -> tuple[int, ...]:
    try:
        return tuple(sorted(parse_cpu_list(str(text or ""), where)))
    except KernelFileError as error:
        problems.append(str(error))
        return ()


def _millicpu(amount: Any, where: str, problems: list[str]) -> int:
    try:
        return quantity_millicpu(amount, where)
    except ConfigError as error:
        problems.append(str(error))
        return 0


# Go writes a nil slice as null.
def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
