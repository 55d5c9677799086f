"""What a pod asks for: native memory and CPU as the scheduler adds them up, and Koordinator's extended resources."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import msgspec

from koordebpf.quantity import Quantity
from koordebpf.state.pods.resources import Effective

NATIVE_MEMORY = "memory"
BATCH_MEMORY = "kubernetes.io/batch-memory"
MID_MEMORY = "kubernetes.io/mid-memory"
# Band of priority → the resource its pods ask for; every other band asks for native memory.
MEMORY_OF_BAND: Mapping[str, str] = {"koord-batch": BATCH_MEMORY, "koord-mid": MID_MEMORY}
NATIVE_CPU = "cpu"
BATCH_CPU = "kubernetes.io/batch-cpu"
MID_CPU = "kubernetes.io/mid-cpu"
# Of Katalyst; the first one counts millicpu, the last one Mbit/s. Source: katalyst-api pkg/consts/resource.go.
RECLAIMED_CPU = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
RECLAIMED_MEMORY = "resource.katalyst.kubewharf.io/reclaimed_memory"
RECLAIMED_RESOURCES = (RECLAIMED_CPU, RECLAIMED_MEMORY)
NET_BANDWIDTH = "resource.katalyst.kubewharf.io/net_bandwidth"
KATALYST_RESOURCES = frozenset({*RECLAIMED_RESOURCES, NET_BANDWIDTH})
CPU_OF_BAND: Mapping[str, str] = {"koord-batch": BATCH_CPU, "koord-mid": MID_CPU}


class PodTerms(msgspec.Struct, frozen=True):
    """What the decision reads of a Pod object beside its identity."""

    is_enabled: bool = False  # label koordinator.sh/eviction-enabled
    own_priority: int = 0  # annotation koordinator.sh/eviction-priority
    priority: int = 0  # spec.priority, or the default of its band where that is absent or 0
    sub_priority: int = 0  # label koordinator.sh/priority, else `priority`
    memory_resource: str = "memory"  # what its band asks for: native, batch or mid memory
    memory_request_bytes: int = 0  # of that resource: what is granted of it
    cpu_resource: str = "cpu"  # as memory_resource
    cpu_request_millicpu: int = 0  # of that resource: what is granted of it
    batch_cpu_millicpu: int = 0  # of batch-cpu, whatever its band asks for
    priority_class: str = ""  # spec.priorityClassName
    workload: str | None = None  # its controller, as namespace/kind/name
    started_s: float | None = None  # status.startTime, seconds since the epoch
    is_ready: bool = False  # condition Ready is True: what a PodDisruptionBudget calls healthy
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    native_memory_request_bytes: int | None = None  # of the containers; None: one of them requests none
    katalyst_requests: Mapping[str, int] = {}  # of Katalyst's resources: reclaimed ones, and bandwidth
    grace_s: int = 30  # spec.terminationGracePeriodSeconds
    deletion_grace_s: int | None = None  # metadata.deletionGracePeriodSeconds; None: it is not being deleted
    is_over: bool = False  # it is being deleted, and none of its containers runs
    deleted_s: float | None = None  # when its deletion was asked for, seconds since the epoch; None: not, or not known
    problem: str | None = None  # which quantity cannot be read: such a pod requests nothing


class MemoryRequests(msgspec.Struct, frozen=True):
    """Bytes. An absent request is 0: the API server has defaulted and validated what was meant."""

    native_bytes: int = 0
    batch_bytes: int = 0
    mid_bytes: int = 0

    def of(self, resource: str) -> int:
        """Return the request of one resource name."""
        return {BATCH_MEMORY: self.batch_bytes, MID_MEMORY: self.mid_bytes}.get(resource, self.native_bytes)


class CpuRequests(msgspec.Struct, frozen=True):
    """Millicpu, in which Koordinator's extended resources count anyway: kubernetes.io/batch-cpu: 2500."""

    native_millicpu: int = 0
    batch_millicpu: int = 0
    mid_millicpu: int = 0

    def of(self, resource: str) -> int:
        """Return the request of one resource name."""
        return {BATCH_CPU: self.batch_millicpu, MID_CPU: self.mid_millicpu}.get(resource, self.native_millicpu)


def memory_requests(its: Effective) -> MemoryRequests:
    """Return what a pod has of what it requests of memory.

    Native: as kubelet and kube-scheduler add it up. Extended: summed over containers and sidecars, as Koordinator does.
    A sum that 64 bits do not hold is what Go makes of it, mostly 0: by that number the pod came to the node.

    Raises: ConfigError: a quantity is none, or negative.
    """
    return MemoryRequests(
        its.request(NATIVE_MEMORY).value(),
        its.extended_request(BATCH_MEMORY).value(),
        its.extended_request(MID_MEMORY).value(),
    )


def cpu_requests(its: Effective) -> CpuRequests:
    """Return the same of CPU.

    Raises: ConfigError: a quantity is none, or negative.
    """
    return CpuRequests(
        its.request(NATIVE_CPU).milli_value(),
        its.extended_request(BATCH_CPU).value(),
        its.extended_request(MID_CPU).value(),
    )


def native_memory_of_every_container(its: Effective) -> int | None:
    """Return the memory that the containers request, without init containers; None: one of them requests none.

    Where the pod's own level requests memory, it is that.

    Raises: ConfigError: a quantity is none, or negative.
    """
    if (of_level := its.level_request(NATIVE_MEMORY)) is not None:
        return of_level.value() or None
    requests = [its.request_of(container, NATIVE_MEMORY) for container in its.main]
    if not all(each.value() for each in requests):
        return None
    return functools.reduce(Quantity.plus, requests, Quantity()).value() or None


def katalyst_requests(its: Effective) -> dict[str, int]:
    """Return what a pod has of Katalyst's resources, by resource, as native ones are counted.

    Raises: ConfigError: a quantity is none, or negative.
    """
    if not its.names_any(KATALYST_RESOURCES):  # most pods name none: to add them up takes ten times as long
        return {}
    amounts = {resource: its.request(resource).value() for resource in sorted(KATALYST_RESOURCES)}
    return {resource: amount for resource, amount in amounts.items() if amount}
