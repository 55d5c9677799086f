"""What a pod asks for: native memory and CPU as the scheduler adds them up, and Koordinator's extended resources."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.kube.cache.objects import Container, Pod
from koordebpf.quantity import Quantity, parse_amount
from koordebpf.state.pods.effective import EffectiveContainers

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


def memory_requests(pod: Pod, its: EffectiveContainers) -> MemoryRequests:
    """Return what the pod has of what it asks for, as kubelet and kube-scheduler add it up.

    Extended: summed over containers and sidecars (init containers with restartPolicy Always). Native: that sum, or
    the largest moment of the init containers if that is more, plus the pod's overhead. `its`: what of it is `granted`.
    A sum that 64 bits do not hold is what Go makes of it, mostly 0: by that number the pod came to the node.

    Source: k8s.io/component-helpers resource.PodRequests; koordinator pkg/util/extended_resource.go.
    Raises: ConfigError: a quantity is none, or negative.
    """
    return MemoryRequests(
        scheduled_request(pod, its, NATIVE_MEMORY).value(),
        _extended(pod, its, BATCH_MEMORY).value(),
        _extended(pod, its, MID_MEMORY).value(),
    )


def cpu_requests(pod: Pod, its: EffectiveContainers) -> CpuRequests:
    """Return the same of CPU.

    Raises: ConfigError: a quantity is none, or negative.
    """
    return CpuRequests(
        scheduled_request(pod, its, NATIVE_CPU).milli_value(),
        _extended(pod, its, BATCH_CPU).value(),
        _extended(pod, its, MID_CPU).value(),
    )


def scheduled_request(pod: Pod, its: EffectiveContainers, resource: str) -> Quantity:
    """Return what kube-scheduler counts of one resource, whichever it is: native ones are counted so.

    Raises: ConfigError: a quantity is none, or negative.
    """
    path = f"pod {pod.key} spec"
    request = max(_extended(pod, its, resource), _init_peak(its.init, resource, path))
    overhead = (pod.spec.overhead or {}).get(resource)
    return request if overhead is None else request.plus(parse_amount(overhead, f"{path}.overhead.{resource}"))


def native_memory_of_every_container(pod: Pod, its: EffectiveContainers) -> int | None:
    """Return the memory that the containers request, without init containers; None: one of them requests none.

    Raises: ConfigError: a quantity is none, or negative.
    """
    path = f"pod {pod.key} spec"
    requests = [_request(container, NATIVE_MEMORY, path) for container in its.main]
    return _sum(requests).value() or None if all(each.value() for each in requests) else None


def katalyst_requests(pod: Pod, its: EffectiveContainers) -> dict[str, int]:
    """Return what the pod has of Katalyst's resources, by resource, as native ones are counted.

    Raises: ConfigError: a quantity is none, or negative.
    """
    if not _names_any(pod):
        return {}
    amounts = {resource: scheduled_request(pod, its, resource).value() for resource in sorted(KATALYST_RESOURCES)}
    return {resource: amount for resource, amount in amounts.items() if amount}


# Most pods name none: to add them up takes ten times as long.
def _names_any(pod: Pod) -> bool:
    for container in (*pod.spec.containers, *(pod.spec.initContainers or ())):
        if (resources := container.resources) is not None:
            for written in (resources.requests, resources.limits):
                if written and not KATALYST_RESOURCES.isdisjoint(written):
                    return True
    return not KATALYST_RESOURCES.isdisjoint(pod.spec.overhead or ())


def _extended(pod: Pod, its: EffectiveContainers, resource: str) -> Quantity:
    sidecars = [container for container in its.init if container.restartPolicy == "Always"]
    path = f"pod {pod.key} spec"
    return _sum(_request(container, resource, path) for container in [*its.main, *sidecars])


def _init_peak(init: Iterable[Container], resource: str, path: str) -> Quantity:
    # Init containers run one after the other, each beside the sidecars that started before it.
    peak = started = Quantity()
    for container in init:
        moment = started.plus(_request(container, resource, path))
        if container.restartPolicy == "Always":
            started = moment
        peak = max(peak, moment)
    return peak


def _request(container: Container, resource: str, path: str) -> Quantity:
    # The API server writes a limit without a request as both; a Pod from a file has not been there.
    resources = container.resources
    for written in (resources.requests, resources.limits) if resources else ():
        if written and resource in written:
            return parse_amount(written[resource], f"{path}.containers[{container.name}].resources.{resource}")
    return Quantity()


def _sum(amounts: Iterable[Quantity]) -> Quantity:
    return functools.reduce(Quantity.plus, amounts, Quantity())
