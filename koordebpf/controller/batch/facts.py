"""From objects of the API server to what the formulas take. Pure.

What a Node's annotations hold and cannot be read changes nothing and is named. A pod or a report that cannot be read is
left out as a whole by the table it is for, which says so.

Source: koordinator apis/extension/{node_reservation,node_colocation,cpu_normalization,resource_amplification}.go,
apis/slo/v1alpha1/{nodemetric_types,pod}.go; spec of the annotations in docs/colocation/batch-resources.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError, KoordebpfError
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kube.body import MALFORMED
from koordebpf.kube.cache.node_metric import NodeMetric, ResourceUse, decode_node_metric
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.cache.store import decode_pod
from koordebpf.kube.clients.nodeslos import NodeSLOMeta
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.kube.colocation.source import Readers
from koordebpf.kube.colocation.writes import WrittenMetric
from koordebpf.policy.batch.facts import (
    NOTHING,
    CpuMemory,
    HostApplicationUse,
    NodeFacts,
    PodRequest,
    PodUse,
    Usage,
    Zone,
)
from koordebpf.policy.batch.formulas import RESOURCES
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.slo.pods.cpu_placement import RESERVATION_ANNOTATION, RESOURCE_STATUS_ANNOTATION
from koordebpf.slo.pods.qos import koord_priority, koord_qos_or_default
from koordebpf.state.pods.effective import effective
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, cpu_requests, memory_requests
from koordebpf.state.pods.resources import Effective
from koordebpf.units import NS_PER_S

THIRD_PARTY_ANNOTATION: Final = "node.koordinator.sh/thirdPartyAllocations"
NORMALIZATION_ANNOTATION: Final = "node.koordinator.sh/cpu-normalization-ratio"
RAW_ALLOCATABLE_ANNOTATION: Final = "node.koordinator.sh/raw-allocatable"
_FEW_DIGITS: Final = 15  # 64 bits hold a thousand times as much
_ACTIVE: Final = frozenset({"Running", "Pending"})
T = TypeVar("T")
Quantities = Mapping[str, str | int | float]


class PodRecord(PodRequest, frozen=True, gc=False):
    """A pod's request, and its Node; "": it has none, or has ended."""

    node: str = ""


class MetricRecord(msgspec.Struct, frozen=True):
    """A NodeMetric: its status for the formulas, and `written` for who writes its spec."""

    node: str
    written: WrittenMetric
    usage: Usage | None


class TopologyRecord(msgspec.Struct, frozen=True, gc=False):
    """The zones of a Node's NodeResourceTopology; empty where not each of them has CPU and memory.

    `batch`: zone/resource → what it has of batch resources.
    """

    node: str
    zones: tuple[Zone, ...]
    batch: dict[str, int] = {}


class _Zone(msgspec.Struct):
    name: str = ""
    resources: list[_ZoneResource] = []


class _ZoneResource(msgspec.Struct):
    name: str = ""
    allocatable: str | int | float = 0


class _Topology(msgspec.Struct):
    metadata: NodeSLOMeta
    zones: list[_Zone] = []


class _NumaResource(msgspec.Struct):
    node: int = -1


class _ResourceStatus(msgspec.Struct):
    numaNodeResources: list[_NumaResource] | None = None


class _Reservation(msgspec.Struct):
    resources: dict[str, str | int | float] | None = None
    reservedCPUs: str = ""


class _Allocation(msgspec.Struct):
    name: str = ""
    priority: str = ""
    resources: dict[str, str | int | float] | None = None


class _Allocations(msgspec.Struct):
    allocations: list[_Allocation] = []


_TOPOLOGY = decoder(_Topology)
_METADATA = decoder(WrittenMetric)
_RESOURCE_STATUS = decoder(_ResourceStatus)


def node_of(record: PodRecord | MetricRecord | TopologyRecord) -> str:
    """Return the Node that an object is of; "": of none."""
    return record.node


def read_pod(raw: msgspec.Raw) -> PodRecord:
    """Return what is kept of a pod.

    Raises:  msgspec.DecodeError: a field has another type, or a request is no quantity.
    Cost:    25 µs.
    """
    return pod_record(decode_pod(raw))


def pod_record(pod: Pod) -> PodRecord:
    """Return what is kept of a pod, its request as far as it is granted. One neither Running nor Pending is of no Node.

    Raises:  msgspec.DecodeError: a request is no quantity.
    """
    labels = pod.metadata.labels
    its = effective(pod)
    qos = koord_qos_or_default(labels, its.kube_qos)
    band = koord_priority(labels, pod.spec.priority, qos)
    node = sys.intern(pod.spec.nodeName) if pod.status.phase in _ACTIVE else ""  # thirty have the same
    cpu, memory = _read(lambda: _granted_amounts(its))
    return PodRecord(pod.key, band, qos == "LSE", cpu, memory, _zones_of(pod.metadata.annotations), node)


def _granted_amounts(its: Effective) -> tuple[int, int]:
    if its.problem is not None:
        raise msgspec.ValidationError(its.problem)
    return cpu_requests(its).native_millicpu, memory_requests(its).native_bytes


def read_node_metric(raw: msgspec.Raw) -> MetricRecord:
    """Return what is kept of a NodeMetric.

    Raises:  msgspec.DecodeError: a field has another type, a quantity is none, or updateTime is no time.
    Cost:    150 µs with 30 pods.
    """
    return MetricRecord((written := _METADATA.decode(raw)).metadata.name, written, usage_of(decode_node_metric(raw)))


def usage_of(metric: NodeMetric) -> Usage | None:
    """Return the status for the formulas; None: there is none yet.

    Raises:  msgspec.DecodeError: a quantity is none, or updateTime is no time.
    """
    status = metric.status
    if status is None:
        return None
    node = status.nodeMetric
    reclaimable = status.prodReclaimableMetric
    return Usage(
        _epoch_ns(status.updateTime) if status.updateTime else None,
        _use(node.nodeUsage) if node and _has_both(node.nodeUsage) else None,
        _use(node.systemUsage) if node else NOTHING,
        tuple(
            PodUse(f"{each.namespace}/{each.name}", sys.intern(each.priority), *_amounts(each.podUsage))
            for each in status.podsMetric or ()
        ),
        tuple(
            HostApplicationUse(each.name, _application_band(each.priority, each.qos), *_amounts(each.usage))
            for each in status.hostApplicationMetric or ()
        ),
        _use(reclaimable.resource) if reclaimable and reclaimable.resource and reclaimable.resource.resources else None,
    )


def read_topology(raw: msgspec.Raw) -> TopologyRecord:
    """Return what is kept of a NodeResourceTopology.

    Raises:  msgspec.DecodeError: a field has another type, or a quantity is none.
    """
    topology = _TOPOLOGY.decode(raw)
    zones = []
    batch: dict[str, int] = {}
    for zone in topology.zones:
        amounts = {each.name: each.allocatable for each in zone.resources}
        if not {"cpu", "memory"} <= amounts.keys():
            return TopologyRecord(topology.metadata.name, ())
        zones.append(Zone(zone.name, CpuMemory(_millicpu(amounts["cpu"]), _bytes(amounts["memory"]))))
        batch |= {f"{zone.name}/{name}": _bytes(amounts[name]) for name in (BATCH_CPU, BATCH_MEMORY) if name in amounts}
    return TopologyRecord(topology.metadata.name, tuple(zones), batch)


def node_facts(node: ColocationNode, zones: tuple[Zone, ...] = ()) -> NodeFacts:
    """Return a Node for the formulas; `problems` say what of it is left out."""
    problems: list[str] = []
    annotations = node.annotations or {}
    capacity = _status(node.capacity, "capacity", problems)
    # Amplified allocatable is more than there is: the kubelet's own stands in an annotation beside it.
    raw = _annotation(annotations, RAW_ALLOCATABLE_ANNOTATION, dict[str, str | int | float], problems) or {}
    allocatable = _status({**(node.allocatable or {}), **raw}, "allocatable", problems)
    return NodeFacts(
        node.name,
        capacity,
        allocatable,
        _reserved(annotations, problems),
        _third_party(annotations, problems),
        _ratio(annotations, problems),
        zones,
        tuple(problems),
    )


def batch_amount(node: ColocationNode, resource: str) -> int | None:
    """Return what a Node has of an extended resource; None: none of it, or what is there is no quantity."""
    written = (node.allocatable or {}).get(resource)
    if written is None or (node.capacity or {}).get(resource) is None:
        return None
    try:
        return quantity_bytes(written)
    except ConfigError:
        return None


def batch_amounts(node: ColocationNode) -> dict[str, int | None]:
    """Return resource → what a Node has of it, of the four of batch and mid."""
    return {name: batch_amount(node, name) for name in RESOURCES}


def _status(of: Quantities | None, field: str, problems: list[str]) -> CpuMemory:
    try:
        return _cpu_memory(of or {}, f"status.{field}")
    except ConfigError as error:
        problems.append(str(error))
        return NOTHING


def _reserved(annotations: Mapping[str, str], problems: list[str]) -> CpuMemory:
    written = _annotation(annotations, RESERVATION_ANNOTATION, _Reservation, problems)
    if written is None:
        return NOTHING

    def read() -> CpuMemory:
        amount = _cpu_memory(written.resources or {}, RESERVATION_ANNOTATION)
        if written.reservedCPUs:
            cpus = len(set(parse_cpu_list(written.reservedCPUs, RESERVATION_ANNOTATION)))
            amount = msgspec.structs.replace(amount, cpu_millicpu=cpus * 1000)
        return amount

    return _or_nothing(read, problems)


def _third_party(annotations: Mapping[str, str], problems: list[str]) -> CpuMemory:
    written = _annotation(annotations, THIRD_PARTY_ANNOTATION, _Allocations, problems)
    if written is None:
        return NOTHING

    def read() -> CpuMemory:
        of_batch = [each.resources or {} for each in written.allocations if each.priority == "koord-batch"]
        cpu, memory = (
            sum(quantity_bytes(each.get(name, 0), THIRD_PARTY_ANNOTATION) for each in of_batch)
            for name in (BATCH_CPU, BATCH_MEMORY)
        )
        return CpuMemory(cpu, memory)

    return _or_nothing(read, problems)


def _or_nothing(read: Callable[[], CpuMemory], problems: list[str]) -> CpuMemory:
    try:
        return read()
    except KoordebpfError as error:
        problems.append(f"{error}; the annotation is left out")
        return NOTHING


def _ratio(annotations: Mapping[str, str], problems: list[str]) -> float:
    if (written := annotations.get(NORMALIZATION_ANNOTATION)) is None:
        return 1.0
    try:
        ratio = float(written)
    except ValueError:
        ratio = math.nan
    if math.isfinite(ratio) and ratio > 0:
        return ratio
    problems.append(f"annotation {NORMALIZATION_ANNOTATION}: {written[:80]!r}: must be a number above 0")
    return 1.0


def _annotation(annotations: Mapping[str, str], name: str, kind: type[T], problems: list[str]) -> T | None:
    written = annotations.get(name)
    if not written:
        return None
    try:
        return decoder(kind).decode(written)
    except MALFORMED as error:
        problems.append(f"annotation {name}: {written[:80]!r}: {error}; it is left out")
        return None


# An annotation of a tenant's pod: what cannot be read is no allocation, and is not worth a word.
def _zones_of(annotations: Mapping[str, str] | None) -> tuple[int, ...]:
    if not annotations or not (written := annotations.get(RESOURCE_STATUS_ANNOTATION)):
        return ()
    try:
        status = _RESOURCE_STATUS.decode(written)
    except MALFORMED:
        return ()
    return tuple(each.node for each in status.numaNodeResources or ())


def _application_band(priority: str, qos: str) -> str:
    return priority or {"": "", "BE": "koord-batch"}.get(qos, "koord-prod")


def _use(of: ResourceUse | None) -> CpuMemory:
    return CpuMemory(*_amounts(of))


def _has_both(of: ResourceUse | None) -> bool:
    return of is not None and {"cpu", "memory"} <= (of.resources or {}).keys()


def _amounts(of: ResourceUse | None) -> tuple[int, int]:
    resources = (of.resources if of else None) or {}
    return _millicpu(resources.get("cpu", 0)), _bytes(resources.get("memory", 0))


def _cpu_memory(of: Quantities, path: str) -> CpuMemory:
    return CpuMemory(
        quantity_millicpu(of.get("cpu", 0), f"{path}.cpu"), quantity_bytes(of.get("memory", 0), f"{path}.memory")
    )


# A report has sixty of each: what koordlet and this project's agent write is read in a tenth of the time.
def _millicpu(written: str | int | float) -> int:
    if isinstance(written, str) and len(written) <= _FEW_DIGITS and written.isascii():
        if written[-1:] == "m" and written[:-1].isdecimal():
            return int(written[:-1])
        if written.isdecimal():
            return int(written) * 1000
    return _read(lambda: quantity_millicpu(written))


def _bytes(written: str | int | float) -> int:
    if isinstance(written, str) and len(written) <= _FEW_DIGITS and written.isascii():
        if written.isdecimal():
            return int(written)
        if written[-2:] == "Ki" and written[:-2].isdecimal():
            return int(written[:-2]) << 10
    return _read(lambda: quantity_bytes(written))


# As the decoder says what cannot be read, so that the table keeps the last good object.
def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except ConfigError as error:
        raise msgspec.ValidationError(str(error)) from error


def _epoch_ns(written: str) -> int:
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        raise msgspec.ValidationError(f"updateTime {written[:40]!r} is no time") from None
    if at.tzinfo is None:
        raise msgspec.ValidationError(f"updateTime {written[:40]!r} has no time zone")
    return int(at.timestamp() * NS_PER_S)


READERS: Final = Readers(read_pod, read_node_metric, read_topology, node_of)
