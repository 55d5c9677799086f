"""What a pod gives back when it goes."""

from __future__ import annotations

from koordebpf.state.view import PodView


def credit_bytes(pod: PodView) -> int:
    """Return the memory that comes back with the pod's death; 0 where it was not measured.

    inactive_anon + active_anon + unevictable, less the shmem of a pod whose tmpfs outlives it. Those lists hold the
    pod's tmpfs pages too, so a tmpfs that goes with the pod is in the sum. Page cache is not: the node counts it as
    available already, and its usage would not fall.

    Shmem of such a pod that was not measured counts as given back. Too high a credit costs one more round, a few
    milliseconds later, on true numbers; too low a credit costs an innocent pod in this one.
    """
    memory = pod.memory
    if memory is None:
        return 0
    kept = (memory.shmem_bytes or 0) if pod.keeps_tmpfs else 0
    return max(memory.koordinator_used_bytes - kept, 0)


def koordinator_credit_bytes(pod: PodView) -> int:
    """Return what Koordinator would count for the pod: the same lists, tmpfs included; 0 where not measured."""
    return pod.memory.koordinator_used_bytes if pod.memory is not None else 0
