"""Batch and mid resources of a node. Pure: time is an argument.

    batch = capacity − safety margin − what system and host applications use, or what is reserved if that is more
            − what pods use, request, or the higher of both: by cpuCalculatePolicy and memoryCalculatePolicy
    mid   = what prod pods do not need, as predicted, and no more than is unused
            + a share of what no pod has requested

Each is raised to zero, and cut to its share of the capacity. Batch CPU is multiplied by the ratio of normalization, and
what a third party has allocated is taken off at the end.

Source: koordinator pkg/slo-controller/noderesource/plugins/{batchresource,midresource,util}. docs/colocation/
batch-resources.md says where this differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from koordebpf.policy.batch.facts import (
    BATCH_BANDS,
    MID_BANDS,
    NOTHING,
    Calculation,
    CpuMemory,
    HostApplicationUse,
    NodeFacts,
    PodRequest,
    PodUse,
    Sum,
    Usage,
)
from koordebpf.slo.manager.node_colocation import CPU_POLICIES, MEMORY_POLICIES, NodeColocation
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koordebpf.units import NS_PER_S

RESOURCES: Final = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY)
Kind = Literal["cpu", "memory"]
_BATCH: Final[tuple[tuple[Kind, str], ...]] = (("cpu", BATCH_CPU), ("memory", BATCH_MEMORY))


class Taken(msgspec.Struct, gc=False):
    """Of one resource, by pods that are neither batch nor free.

    Attributes:
        used: what pods with a report use; of CPU without those of class LSE.
        lse: requests of CPU of pods of class LSE with a report: what they do not use is not reclaimed.
        unreported: requests of pods without a report.
        gone: what pods use that are in the report and no longer in the list.
        requested: requests of all pods of the list.
        highest: of each pod with a report the higher of use and request.
        prod: requests of those that are not mid either.
    """

    used: int = 0
    lse: int = 0
    unreported: int = 0
    gone: int = 0
    requested: int = 0
    highest: int = 0
    prod: int = 0


class PodSums(msgspec.Struct, gc=False):
    """Both resources, and how many pods each count comes from."""

    cpu: Taken
    memory: Taken
    reported: int = 0
    lse: int = 0
    unreported: int = 0
    gone: int = 0
    listed: int = 0


def pod_sums(pods: Iterable[PodRequest], uses: Iterable[PodUse]) -> PodSums:
    """Return what the pods take.

    Cost:    0.6 µs each pod.
    """
    cpu, memory = Taken(), Taken()
    sums = PodSums(cpu, memory)
    reported = {use.key: use for use in uses}
    for pod in pods:
        use = reported.pop(pod.key, None)
        band = pod.band
        if band in BATCH_BANDS:
            continue
        wanted_cpu, wanted_memory = pod.cpu_millicpu, pod.memory_bytes
        sums.listed += 1
        cpu.requested += wanted_cpu
        memory.requested += wanted_memory
        if band not in MID_BANDS:
            cpu.prod += wanted_cpu
            memory.prod += wanted_memory
        if use is None:
            sums.unreported += 1
            cpu.unreported += wanted_cpu
            memory.unreported += wanted_memory
            continue
        sums.reported += 1
        used_cpu, used_memory = use.cpu_millicpu, use.memory_bytes
        if pod.is_lse:
            sums.lse += 1
            cpu.lse += wanted_cpu
        else:
            cpu.used += used_cpu
        memory.used += used_memory
        cpu.highest += wanted_cpu if wanted_cpu > used_cpu else used_cpu
        memory.highest += wanted_memory if wanted_memory > used_memory else used_memory
    for use in reported.values():
        if use.band not in BATCH_BANDS:
            sums.gone += 1
            cpu.gone += use.cpu_millicpu
            memory.gone += use.memory_bytes
    return sums


class NodeResult(msgspec.Struct, frozen=True, gc=False):
    """The four resources of a node, by name, and per NUMA zone its batch resources.

    `reset`: why the node has none of them; "": it has. `origin`: batch amounts before a third party's allocations.
    """

    calculations: Mapping[str, Calculation]
    zones: Mapping[str, CpuMemory] = {}
    origin: CpuMemory = NOTHING
    reset: str = ""


def node_result(
    node: NodeFacts, pods: Sequence[PodRequest], usage: Usage | None, strategy: NodeColocation, now_ns: int
) -> NodeResult:
    """Return what the node's pods may request of batch and mid resources. `now_ns` is CLOCK_REALTIME.

    Cost:    60 µs with 30 pods.
    """
    reset = reset_reason(usage, strategy, now_ns)
    if reset or usage is None:
        return NodeResult({name: Calculation(name, None, reset=reset) for name in RESOURCES}, reset=reset)
    sums = pod_sums(pods, usage.pods)
    found = {}
    origin = []
    for kind, resource in _BATCH:
        total = _batch(kind, resource, node, sums, usage, strategy)
        if kind == "cpu":
            ratio = node.normalization_ratio
            more = normalized(total.total, ratio) - total.total
            total.add("CPU normalization", more, f"annotation cpu-normalization-ratio {ratio:g}")
        origin.append(total.total)
        total.add("third party", -amount_of(node.third_party, kind), "annotation thirdPartyAllocations")
        total.at_least_zero()
        found[resource] = total.calculation()
    found[MID_CPU] = _mid("cpu", MID_CPU, node, sums, usage, strategy)
    found[MID_MEMORY] = _mid("memory", MID_MEMORY, node, sums, usage, strategy)
    return NodeResult(found, origin=CpuMemory(*origin))


def reset_reason(usage: Usage | None, strategy: NodeColocation, now_ns: int) -> str:
    """Return why a node has no batch and mid resources; "": it has."""
    if not strategy.enable:
        return "colocation is off (colocation-config enable)"
    if usage is None:
        return "there is no NodeMetric of this node"
    if usage.updated_ns is None:
        return "its NodeMetric was never reported (no status.updateTime)"
    age_ns = now_ns - usage.updated_ns
    if age_ns > strategy.degradeTimeMinutes * 60 * NS_PER_S:
        minutes = age_ns // (60 * NS_PER_S)
        return f"its NodeMetric is {minutes} min old (degradeTimeMinutes {strategy.degradeTimeMinutes})"
    return ""


def safety_margin(capacity: int, reclaim_percent: int) -> int:
    """Return what is set aside of a capacity. In floating point and cut, as Koordinator computes it.

    >>> safety_margin(1000, 65)
    350
    """
    return int(capacity * ((100 - reclaim_percent) / 100.0))


def batch_percents(kind: Kind, strategy: NodeColocation) -> tuple[int, int | None]:
    """Return ReclaimThresholdPercent and batch ThresholdPercent; None: no limit."""
    if kind == "cpu":
        return strategy.cpuReclaimThresholdPercent, strategy.batchCPUThresholdPercent
    return strategy.memoryReclaimThresholdPercent, strategy.batchMemoryThresholdPercent


def normalized(millicpu: int, ratio: float) -> int:
    """Return batch CPU by the ratio of normalization; 1 or less changes nothing.

    Upwards to a whole millicpu, of a product that was cut to a thousandth: as Koordinator's quantities are.
    """
    return math.ceil(int(millicpu * 1000 * ratio) / 1000) if ratio > 1 and math.isfinite(ratio) else millicpu


def reserved_of(kind: Kind, node: NodeFacts) -> tuple[int, str]:
    """Return what kubelet or the annotation reserves, whichever is more, and which of them."""
    kubelet = max(0, amount_of(node.capacity, kind) - amount_of(node.allocatable, kind))
    annotation = amount_of(node.reserved, kind)
    if annotation > kubelet:
        return annotation, "annotation reservation"
    return kubelet, "kubelet: capacity − allocatable"


def amount_of(of: CpuMemory | HostApplicationUse | PodRequest | PodUse, kind: Kind) -> int:
    """Return its millicpu or bytes."""
    return of.cpu_millicpu if kind == "cpu" else of.memory_bytes


def policy_of(kind: Kind, strategy: NodeColocation) -> str:
    """Return usage, request or maxUsageRequest; of CPU there is no request, and any other word is usage."""
    policy = strategy.cpuCalculatePolicy if kind == "cpu" else strategy.memoryCalculatePolicy
    return policy if policy in (CPU_POLICIES if kind == "cpu" else MEMORY_POLICIES) else "usage"


def system_use(kind: Kind, usage: Usage, *, without: frozenset[str]) -> tuple[int, int]:
    """Return what the system uses, and what host applications use of other bands than `without`."""
    applications = sum(amount_of(each, kind) for each in usage.host_applications if each.band not in without)
    return amount_of(usage.system, kind), applications


def _batch(kind: Kind, resource: str, node: NodeFacts, sums: PodSums, usage: Usage, strategy: NodeColocation) -> Sum:
    total = Sum(resource)
    capacity = amount_of(node.capacity, kind)
    percent, limit = batch_percents(kind, strategy)
    policy = policy_of(kind, strategy)
    total.add("capacity", capacity, f"node.status.capacity.{kind}", keep=True)
    total.add(
        "safety margin",
        -safety_margin(capacity, percent),
        f"{100 - percent} %, {kind}ReclaimThresholdPercent {percent}",
        keep=True,
    )
    _add_system(total, kind, node, usage, policy)
    taken = sums.cpu if kind == "cpu" else sums.memory
    _add_pods(total, kind, taken, sums, policy)
    total.at_least_zero()
    if limit is not None:
        field = "batchCPUThresholdPercent" if kind == "cpu" else "batchMemoryThresholdPercent"
        total.at_most(int(capacity * (limit / 100.0)), f"{field} {limit}")
    return total


# Use and reservations are not added up: what runs may run on what is reserved for it.
def _add_system(total: Sum, kind: Kind, node: NodeFacts, usage: Usage, policy: str) -> None:
    reserved, source = reserved_of(kind, node)
    if policy == "request":
        total.add("reserved", -reserved, source, keep=True)
        return
    system, applications = system_use(kind, usage, without=BATCH_BANDS)
    total.add("system used", -system, "NodeMetric systemUsage", keep=True)
    total.add("host applications used", -applications, "NodeMetric, not batch or free")
    total.add("reserved above that", -max(0, reserved - system - applications), source)


def _add_pods(total: Sum, kind: Kind, taken: Taken, sums: PodSums, policy: str) -> None:
    unreported = f"{_pods(sums.unreported)} without a report yet"
    gone = f"{_pods(sums.gone)}, reported, no longer listed"
    if policy == "request":
        total.add("pods requested", -taken.requested, f"{_pods(sums.listed)}, not batch or free", keep=True)
        return
    if policy == "maxUsageRequest":
        source = f"the higher of both, {_pods(sums.reported)}"
        total.add("pods used or requested", -taken.highest, source, keep=True)
    else:
        lse = sums.lse if kind == "cpu" else 0
        total.add("pods used", -taken.used, f"NodeMetric, {_pods(sums.reported - lse)}, not batch or free", keep=True)
        total.add("LSE pods requested", -taken.lse, f"{_pods(lse)}, whose CPU is not reclaimed")
    total.add("new pods requested", -taken.unreported, unreported)
    total.add("gone pods used", -taken.gone, gone)


def _mid(
    kind: Kind, resource: str, node: NodeFacts, sums: PodSums, usage: Usage, strategy: NodeColocation
) -> Calculation:
    total = Sum(resource)
    capacity = amount_of(node.capacity, kind)
    word = "CPU" if kind == "cpu" else "Memory"
    limit = getattr(strategy, f"mid{word}ThresholdPercent")
    ceiling = int(capacity * (limit / 100.0)), f"mid{word}ThresholdPercent {limit}"
    if strategy.midReclaimMode == "static":
        percent = getattr(strategy, f"midStatic{word}ReservedPercent")
        share = int(capacity * (percent / 100.0))
        total.add("static share", share, f"midStatic{word}ReservedPercent {percent}", keep=True)
        total.at_most(*ceiling)
        return total.calculation()
    reclaimable = usage.prod_reclaimable
    source = "NodeMetric prodReclaimableMetric" if reclaimable is not None else "not reported"
    total.add("prod reclaimable", amount_of(reclaimable or NOTHING, kind), source, keep=True)
    unused = capacity - amount_of(usage.node, kind) if usage.node is not None else 0
    total.at_most(unused, "unused: capacity − nodeUsage" if usage.node is not None else "no nodeUsage was reported")
    total.at_least_zero()
    taken = sums.cpu if kind == "cpu" else sums.memory
    system, applications = system_use(kind, usage, without=MID_BANDS)
    reserved, _ = reserved_of(kind, node)
    free = max(0, capacity - max(system + applications, reserved) - taken.prod)
    share = int(free * (strategy.midUnallocatedPercent / 100.0))
    source = f"{strategy.midUnallocatedPercent} % of what prod pods do not request"
    total.add("unallocated share", share, source)
    total.at_most(*ceiling)
    return total.calculation()


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"
