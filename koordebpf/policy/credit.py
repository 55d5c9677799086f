"""What the eviction of a pod releases: its credit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordebpf.policy.plan import Candidate
from koordebpf.state.amount import Dimension
from koordebpf.state.view import PodView
from koordebpf.units import MIB

EMPTY_BYTES = MIB  # Why: an empty pod of three containers is charged 10 to 300 KiB, more on more CPUs


def credit_bytes(pod: PodView) -> int:
    """Return the memory that comes back with the pod's death; 0 where it was not measured.

    inactive_anon + active_anon + unevictable, the kernel's memory for the pod, and what is held for it elsewhere, in
    zram or by its virtual machine, less the shmem of a pod whose tmpfs outlives it. Those lists hold the pod's tmpfs
    pages too, so the pod's own tmpfs is in the sum. Page cache and reclaimable slab are not: the node counts them as
    available already, and its usage would not fall.

    Shmem of such a pod that was not measured counts as released. Too high a credit costs one more round, a few
    milliseconds later, on true numbers; too low a credit costs an innocent pod in this one.

    A pod without a page of its own has a few KiB of kernel memory for its cgroups alone, and no eviction relieves a
    node by that: it counts from 1 MiB on.
    """
    memory = pod.memory
    if memory is None:
        return 0
    # Spelled out: this is asked of every pod several times a tick, and a property is a call.
    listed = memory.inactive_anon_bytes + memory.active_anon_bytes + memory.unevictable_bytes
    rest = (memory.kernel_bytes or 0) + memory.elsewhere_bytes
    if not listed and rest < EMPTY_BYTES:
        return 0
    held = listed + rest
    return max(held - (memory.shmem_bytes or 0), 0) if pod.keeps_tmpfs else held


def koordinator_credit_bytes(pod: PodView) -> int:
    """Return what Koordinator would count for the pod: the lists alone, tmpfs included; 0 where not measured."""
    return pod.memory.koordinator_used_bytes if pod.memory is not None else 0


def candidate_credit(candidate: Candidate, dimension: Dimension) -> int:
    """Return what the eviction of a candidate releases of what is used or requested."""
    return candidate.of(dimension.resource).credit(dimension)


def credit_in(dimension: Dimension) -> Callable[[Candidate], int]:
    """Return the credit of a candidate as a function; for many candidates it takes half the time."""
    resource = dimension.resource
    if not dimension.is_use:
        return lambda candidate: candidate.of(resource).credit(dimension)

    def released(candidate: Candidate) -> int:
        for each in candidate.holdings:
            if each.resource == resource:
                return each.released
        return 0

    return released


def credit_of(candidates: Iterable[Candidate], dimension: Dimension) -> int:
    """Return what they release together."""
    return sum(map(credit_in(dimension), candidates))
