"""Memory that is already on its way back."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.decide.evict.credit import credit_bytes
from koordebpf.decide.evict.settings import EvictSettings
from koordebpf.state.view import NodeView, PendingRelease, PodView, StrayMeasure

# Why: what is left of a dead pod is the page tables of its last tasks and the sandbox, far below an eighth of a victim.
_GIVEN_BACK_SHARE = 8


def still_pending(
    pending: Iterable[PendingRelease], pods: Iterable[PodView], strays: Iterable[StrayMeasure] = ()
) -> tuple[PendingRelease, ...]:
    """Return the releases that have not happened yet.

    A release has happened when the pod's cgroup is gone, its memory cannot be measured any more, or at most an eighth
    of the credit is left. A pod whose object went first, by force, still holds memory in a cgroup without a pod. The
    caller keeps the result: with executor `cgroup` the same pod is filled anew by its restarted containers.
    """
    left = {stray.uid: stray_bytes(stray) for stray in strays if stray.uid is not None}
    left |= {pod.uid: credit_bytes(pod) for pod in pods if pod.memory is not None}
    return tuple(entry for entry in pending if left.get(entry.uid, 0) * _GIVEN_BACK_SHARE > entry.credit_bytes)


def stray_bytes(stray: StrayMeasure) -> int:
    """Return the memory that a cgroup without a pod will give back when its processes end; 0 where not measured."""
    return stray.memory.koordinator_used_bytes if stray.memory is not None else 0


def pending_bytes(view: NodeView, settings: EvictSettings) -> tuple[int, tuple[str, ...]]:
    """Return what leaving pods of any class will still give back, and their names.

    Leaving are the pods that the API marks as deleted and those that were told to go, also when their object is gone.
    What counts is the memory they hold now: that is what the node's usage holds of them, whatever the credit was when
    they were told. A pod that was told longer ago than `pending_max_ns` counts no more.
    """
    since_ns = {entry.uid: entry.since_ns for entry in view.pending}
    leaving = [
        (pod.key, credit_bytes(pod))
        for pod in view.pods
        if (pod.is_terminating or pod.uid in since_ns)
        and view.now_ns - since_ns.get(pod.uid, view.now_ns) <= settings.pending_max_ns
        and credit_bytes(pod) > 0
    ]
    leaving += [
        (f"pod {stray.uid}", stray_bytes(stray))
        for stray in view.strays
        if stray.uid in since_ns
        and view.now_ns - since_ns[stray.uid] <= settings.pending_max_ns
        and stray_bytes(stray) > 0
    ]
    return sum(credit for _, credit in leaving), tuple(name for name, _ in leaving)


def told_uids(view: NodeView, settings: EvictSettings) -> frozenset[str]:
    """Return the pods that were told to go and are still counted on; one that took too long may be told again."""
    return frozenset(entry.uid for entry in view.pending if view.now_ns - entry.since_ns <= settings.pending_max_ns)


def is_cooling(view: NodeView, settings: EvictSettings) -> bool:
    """Tell whether the cool-down after the last eviction runs: not once what was evicted has given its memory back."""
    if view.last_evict_ns is None or view.now_ns >= view.last_evict_ns + settings.cool_time_ns:
        return False
    return bool(still_pending(view.pending, view.pods, view.strays))
