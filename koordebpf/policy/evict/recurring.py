"""Pods of DaemonSets, which come back on the same node at once: not evicted a second time for the same shortage. Pure.

The DaemonSet's controller makes a new pod as soon as the old one is deleted, and it tolerates the node's taints. What
the eviction gave is used again within seconds, so that a second one would not end the shortage either. A new pod that
holds more than the one before is evicted all the same: else a DaemonSet could grow at the cost of all others.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.exemptions import Reason
from koordebpf.policy.plan import Candidate
from koordebpf.slo.strategies.resource_threshold import memory_evict_lower_percent
from koordebpf.state.amount import MEMORY
from koordebpf.state.view import MINUTE_NS, NodeView, PodView, RecurringEviction

_KIND = "DaemonSet"
_KEPT = 64  # Why: more DaemonSets than any node has
COMES_BACK = "its DaemonSet makes it again on this node"


def is_of_daemon_set(workload: str | None) -> bool:
    """Tell whether a controller, as namespace/kind/name, is a DaemonSet."""
    return workload is not None and workload.split("/")[1:2] == [_KIND]


def still_recurring(entries: tuple[RecurringEviction, ...], view: NodeView) -> tuple[RecurringEviction, ...]:
    """Return those whose shortage lasts: the node uses more memory than its lower mark.

    For a minute it lasts in any case: the eviction itself takes the node below the mark, and the new pod needs some
    seconds for its memory. Without a mark nothing says when it ends, and it does not outlast the minute.
    """
    lower = memory_evict_lower_percent(view.strategy) if entries and view.strategy is not None else None
    is_over = lower is None or (
        view.used_bytes is not None and view.used_bytes <= max(view.capacity_bytes * lower // 100, 0)
    )
    return tuple(each for each in entries if not is_over or view.now_ns - each.since_ns < MINUTE_NS)


def with_eviction(
    entries: tuple[RecurringEviction, ...], pod: Candidate, decided_ns: int
) -> tuple[RecurringEviction, ...]:
    """Return them with this pod, if a DaemonSet makes it again: one entry a workload, with the most that a pod gave."""
    if pod.workload is None or not is_of_daemon_set(pod.workload):
        return entries
    found = {each.workload: each for each in entries}
    new = RecurringEviction(pod.uid, pod.workload, decided_ns, pod.of(MEMORY).released)
    if (before := found.get(pod.workload)) is not None:
        most = max(before.released_bytes, new.released_bytes)
        new = replace(new, since_ns=min(before.since_ns, decided_ns), released_bytes=most)
    found[pod.workload] = new
    return tuple(found.values())[-_KEPT:]


def recurring(view: NodeView, *, is_off: bool) -> Callable[[PodView], Reason | None]:
    """Return a function for the reason why a pod may not go again, None where it may; with `is_off` all may."""
    evicted = {} if is_off else {each.workload: each for each in view.frame.recurring}

    def why(pod: PodView) -> Reason | None:
        before = evicted.get(pod.terms.workload or "") if evicted else None
        if before is None or pod.uid == before.uid:
            return None
        if pod.memory is not None and credit_bytes(pod) > before.released_bytes:
            return None
        return "comes_back", f"{COMES_BACK}, and one was evicted for this shortage already"

    return why
