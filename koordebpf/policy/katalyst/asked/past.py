"""Evictions of the last hours by workload, beyond the minute that the budgets count. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koordebpf.state.view import NodeView, PastEviction
from koordebpf.units import NS_PER_S

BUCKET_NS = 600 * NS_PER_S  # Why: the windows that Katalyst's plugins look at are multiples of it
KEPT_NS = 7200 * NS_PER_S  # Why: the longest of those windows
# Why: an eviction that the API server refuses is withdrawn within its tries, 20 s; the view lists a minute.
_SETTLED_NS = 40 * NS_PER_S


class PastCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evictions of one workload in the bucket that starts at `start_ns`."""

    workload: str
    start_ns: int
    count: int


class Past(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Evictions of workloads by bucket, those up to `until_ns`. The budget of a minute bounds how many there are."""

    until_ns: int = 0
    counts: tuple[PastCount, ...] = ()


def with_settled(past: Past, view: NodeView) -> Past:
    """Return the past with the evictions that are not withdrawn any more, without what is too old."""
    until_ns = max(view.now_ns - _SETTLED_NS, past.until_ns)
    settled = [each for each in view.frame.evictions if past.until_ns < each.at_ns <= until_ns]
    if not settled and all(view.now_ns - each.start_ns < KEPT_NS for each in past.counts):
        return past if not past.counts else msgspec.structs.replace(past, until_ns=until_ns)
    kept = [each for each in added(past.counts, settled) if view.now_ns - each.start_ns < KEPT_NS]
    return Past(until_ns, tuple(kept))


def added(counts: Iterable[PastCount], evictions: Iterable[PastEviction]) -> tuple[PastCount, ...]:
    """Return the counts with more evictions; of a pod without a workload none is kept."""
    sums = {(each.start_ns, each.workload): each.count for each in counts}
    for each in evictions:
        if each.workload is not None:
            key = (each.at_ns // BUCKET_NS * BUCKET_NS, each.workload)
            sums[key] = sums.get(key, 0) + 1
    return tuple(PastCount(workload, start_ns, count) for (start_ns, workload), count in sorted(sums.items()))
