"""Memory and CPU that the eviction of a pod releases: its credit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from koordebpf.policy.detect.verdict import BE_REQUESTED_CPU, USED, USED_CPU
from koordebpf.policy.plan import Candidate, CandidateCpu
from koordebpf.state.pods.requests import CPU_RESOURCES
from koordebpf.state.view import PodView
from koordebpf.units import MIB, format_bytes, format_millicpu

_EMPTY_BYTES = MIB  # Why: an empty pod of three containers is charged 10 to 300 KiB, more on more CPUs
_CPU = frozenset({USED_CPU, BE_REQUESTED_CPU, *CPU_RESOURCES})


def credit_bytes(pod: PodView) -> int:
    """Return the memory that comes back with the pod's death; 0 where it was not measured.

    inactive_anon + active_anon + unevictable and the kernel's memory for the pod, less the shmem of a pod whose tmpfs
    outlives it. Those lists hold the pod's tmpfs pages too, so the pod's own tmpfs is in the sum. Page cache
    and reclaimable slab are not: the node counts them as available already, and its usage would not fall.

    Shmem of such a pod that was not measured counts as released. Too high a credit costs one more round, a few
    milliseconds later, on true numbers; too low a credit costs an innocent pod in this one.

    A pod without a page of its own has a few KiB of kernel memory for its cgroups alone, and no eviction relieves a
    node by that: it counts from 1 MiB on.
    """
    memory = pod.memory
    if memory is None:
        return 0
    if not memory.koordinator_used_bytes and (memory.kernel_bytes or 0) < _EMPTY_BYTES:
        return 0
    kept = (memory.shmem_bytes or 0) if pod.keeps_tmpfs else 0
    return max(memory.held_bytes - kept, 0)


def koordinator_credit_bytes(pod: PodView) -> int:
    """Return what Koordinator would count for the pod: the lists alone, tmpfs included; 0 where not measured."""
    return pod.memory.koordinator_used_bytes if pod.memory is not None else 0


def pod_credit(pod: PodView, resource: str) -> int:
    """Return what the eviction of the pod releases of `used`, or of a resource that pods request.

    Bytes of memory, millicpu of CPU.
    """
    if resource == USED:
        return credit_bytes(pod)
    if resource == USED_CPU:
        return pod.cpu_used_millicpu or 0
    if resource == BE_REQUESTED_CPU:
        return pod.terms.batch_cpu_millicpu if pod.koord_qos == "BE" else 0
    if resource in CPU_RESOURCES:
        return pod.terms.cpu_request_millicpu if pod.terms.cpu_resource == resource else 0
    return pod.terms.memory_request_bytes if pod.terms.memory_resource == resource else 0


def candidate_credit(candidate: Candidate, resource: str) -> int:
    """Return the same of a candidate."""
    return credit_in(resource)(candidate)


def credit_in(resource: str) -> Callable[[Candidate], int]:
    """Return the credit of a candidate as a function; the resource is then looked up once for all of them."""
    if resource == USED:
        return attrgetter("credit_bytes")
    if resource in _CPU:
        return lambda candidate: _cpu_credit(candidate.cpu, resource) if candidate.cpu is not None else 0
    return lambda candidate: candidate.request_bytes if candidate.request_resource == resource else 0


def credit_of(candidates: Iterable[Candidate], resource: str) -> int:
    """Return what they release together."""
    return sum(map(credit_in(resource), candidates))


def amount_text(resource: str, amount: int) -> str:
    """Return an amount of a resource for people."""
    return format_millicpu(amount) if resource in _CPU else format_bytes(amount)


def _cpu_credit(cpu: CandidateCpu, resource: str) -> int:
    if resource == USED_CPU:
        return cpu.used_millicpu or 0
    if resource == BE_REQUESTED_CPU:
        return cpu.batch_millicpu
    return cpu.request_millicpu if cpu.request_resource == resource else 0
