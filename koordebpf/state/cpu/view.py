"""CPU measurement, Node, NodeResourceTopology and pods to one `CpuView`; what best-effort pods ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Node, NodeResourceTopology
from koordebpf.quantity import quantity_bytes, quantity_millicpu, total
from koordebpf.slo.pods.cpu_placement import RESERVATION_ANNOTATION, NodeCpus, node_cpus, set_apart
from koordebpf.state.cpu.measured import BeCgroup, CpuManager, CpuMeasured, CpuOwner, CpuPlacement, CpuView
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.requests import BATCH_CPU, MID_CPU, NATIVE_CPU
from koordebpf.state.view import FINISHED_PHASES, PodView

MILLI = 1000


def be_request_millicpu(pods: Iterable[PodView]) -> int:
    """Return the sum of batch-cpu that pods with the label BE ask for; those that have ended ask for nothing."""
    return total(
        pod.terms.batch_cpu_millicpu for pod in pods if pod.koord_qos == "BE" and pod.phase not in FINISHED_PHASES
    )


def be_sets(be_cgroups: Iterable[BeCgroup]) -> frozenset[tuple[int, ...]]:
    """Return the sets of CPUs that limit best-effort pods. koordlet looks at containers and the directory itself."""
    return frozenset(each.cpus for each in be_cgroups if each.cpus and each.level != "pod")


def ordinary_cpus(measured: CpuMeasured) -> frozenset[int]:
    """Return the online CPUs that ordinary tasks run on: without isolated ones, unless all are isolated."""
    topology, manager = measured.topology, measured.manager
    online = frozenset(topology.cpus)
    return online.difference(set_apart(topology.isolated, manager.shared if manager is not None else ())) or online


def ordinary_millicpu(cpu: CpuView) -> int:
    """Return the capacity as far as ordinary tasks can use it."""
    return min(cpu.capacity_millicpu, len(ordinary_cpus(cpu.measured)) * MILLI)


def be_limit_millicpu(measured: CpuMeasured, sets: frozenset[tuple[int, ...]] | None = None) -> int | None:
    """Return what best-effort pods can use at most: the smallest of their cpusets, or the quota if that is less.

    Without a limit it is the machine, so that a window in which a quota is set and removed is averaged over all of it.
    CPUs that the kernel keeps from ordinary tasks are no part of it. None: neither could be read.

    Args:
        measured: the node's CPUs.
        sets: `be_sets` of it, for who has them already.
    Source:  koordinator pkg/koordlet/metricsadvisor/collectors/beresource.
    """
    online = ordinary_cpus(measured)
    sets = be_sets(measured.be_cgroups) if sets is None else sets
    limits = [len(online.intersection(cpus)) * 1000 for cpus in sets]
    if (quota := measured.be_quota) is not None:
        limits.append(len(online) * 1000)
        if quota.quota_us is not None:
            limits.append(quota.quota_us * 1000 // quota.period_us)
    return min(limits, default=None)


def cpu_view(
    measured: CpuMeasured, pods: Iterable[PodFacts], node: Node | None, topology: NodeResourceTopology | None
) -> CpuView:
    """Return the node's CPUs as one value.

    Raises: ConfigError: a quantity of the Node's status is none, or negative.
    Cost:   0.1 µs a pod without CPUs of its own.
    """
    set_aside = node_cpus(
        node.metadata.annotations if node is not None else None,
        topology.metadata.annotations if topology is not None else None,
    )
    capacity = _capacity_millicpu(node, measured)
    problems = list(set_aside.problems)
    return CpuView(
        measured=measured,
        capacity_millicpu=capacity,
        reserved_millicpu=_reserved_millicpu(node, set_aside, measured, problems),
        allocatable=allocatable_cpu(node),
        placement=_placement(tuple(pods), set_aside, measured.manager, problems),
    )


def allocatable_cpu(node: Node | None) -> dict[str, int] | None:
    """Return node.status.allocatable of every CPU resource, in millicpu; None where no Node is known.

    Raises: ConfigError: a quantity is none, or negative.
    """
    if node is None:
        return None
    written = node.status.allocatable or {}
    amounts = {}
    for name in (NATIVE_CPU, BATCH_CPU, MID_CPU):
        if name in written:
            # Koordinator's own resources count in millicpu already: kubernetes.io/batch-cpu: 2500.
            millicpu = quantity_millicpu if name == NATIVE_CPU else quantity_bytes
            amounts[name] = millicpu(written[name], f"node.status.allocatable.{name}")
    return amounts


# As for memory: of a node that is a cgroup the Node object speaks of the whole machine, and so does /proc/stat; its
# CPUs are those of the machine all the same. Kubelet counts them when it starts: those that are offline since are in
# the object, and no pod can use them.
def _capacity_millicpu(node: Node | None, measured: CpuMeasured) -> int:
    online, written = len(measured.topology.online) * MILLI, _written_millicpu(node)
    return online if written is None else min(written, online)


def _written_millicpu(node: Node | None) -> int | None:
    capacity = node.status.capacity if node is not None else None
    if not capacity or NATIVE_CPU not in capacity:
        return None
    return quantity_millicpu(capacity[NATIVE_CPU], f"node.status.capacity.{NATIVE_CPU}")


# The larger of what kubelet keeps back and what the annotation does; its CPUs by number replace its quantity, those
# that are not there left out. Annotations are unchecked: one that is no quantity says nothing, and becomes a problem.
def _reserved_millicpu(node: Node | None, set_aside: NodeCpus, measured: CpuMeasured, problems: list[str]) -> int:
    allocatable, capacity = (node.status.allocatable if node is not None else None) or {}, _written_millicpu(node)
    by_kubelet = 0
    if NATIVE_CPU in allocatable:
        whole = len(measured.topology.online) * MILLI if capacity is None else capacity
        by_kubelet = max(whole - quantity_millicpu(allocatable[NATIVE_CPU], "node.status.allocatable.cpu"), 0)
    by_annotation = len(set(set_aside.reserved_cpus).intersection(measured.topology.cpus)) * MILLI
    if not set_aside.reserved_cpus and set_aside.reserved_cpu is not None:
        place = f"annotation {RESERVATION_ANNOTATION} resources.cpu"
        try:
            by_annotation = quantity_millicpu(set_aside.reserved_cpu, place)
        except ConfigError as error:
            problems.append(str(error))
    return max(by_kubelet, by_annotation)


# Kubelet is asked beside the object: without NodeResourceTopology, its pods have their CPUs all the same.
# Only CPUs that the scheduler bound an LSR or LSE pod to count in place of kubelet's: a NUMA node is no CPU.
def _placement(
    pods: Sequence[PodFacts], set_aside: NodeCpus, manager: CpuManager | None, problems: Sequence[str]
) -> CpuPlacement:
    pinned = {**(manager.pinned if manager else {}), **set_aside.pinned}
    owners = [
        CpuOwner(pod.uid, pod.koord_qos, pod.cpus.cpus, pod.cpus.has_numa)
        for pod in pods
        if (pod.cpus.cpus or pod.cpus.has_numa) and pod.phase not in FINISHED_PHASES
    ]
    by_scheduler = {owner.uid for owner in owners if owner.cpus and owner.koord_qos in ("LSR", "LSE")}
    owners += [
        CpuOwner(uid, "", cpus, by_kubelet=True) for uid, cpus in pinned.items() if cpus and uid not in by_scheduler
    ]
    return CpuPlacement(
        owners=tuple(owners),
        reserved_cpus=set_aside.reserved_cpus,
        system_cpus=set_aside.system_cpus,
        manager_policy="static" if set_aside.is_static or (manager and manager.policy == "static") else "none",
        problems=(
            *problems,
            *(f"pod {pod.namespace}/{pod.name}: {pod.cpus.problem}" for pod in pods if pod.cpus.problem),
        ),
    )
