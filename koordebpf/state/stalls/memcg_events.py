"""What memory.events gained from one look at all memory cgroups to the next."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.events.records import MemcgEvent, MemcgSample

NAMES = ("high", "max", "oom", "oom_kill")
_Counts = tuple[int, int, int, int]


class MemcgEventCounts:
    """Keeps the counts of the look before.

    On cgroup v2 the kernel counts an event in the cgroup and in all above it: here it counts in the lowest alone, so
    that the sum over all is the number of events. One whose cgroup is gone again counts in its parent.
    """

    def __init__(self, *, is_hierarchical: bool) -> None:
        """Begin without a look: the first only tells what there was before.

        Args:
            is_hierarchical: a cgroup's counts hold its children's, as on cgroup v2.
        """
        self._is_hierarchical = is_hierarchical
        self._last: dict[int, _Counts] | None = None

    def push(self, now_ns: int, samples: Iterable[MemcgSample]) -> list[MemcgEvent]:
        """Take the counts as they are at `now_ns`; return what came since the push before, parents first."""
        counts: dict[int, _Counts] = {}
        parents: dict[int, int] = {}
        for sample in samples:
            counts[sample.cgroup_id] = _counts(sample)
            parents[sample.cgroup_id] = sample.parent_id
        last, self._last = self._last, counts
        if last is None:
            return []
        grown = {
            cgroup_id: [max(n - was, 0) for n, was in zip(now, last.get(cgroup_id, (0, 0, 0, 0)), strict=True)]
            for cgroup_id, now in counts.items()
            if now != last.get(cgroup_id, (0, 0, 0, 0))
        }
        own = {cgroup_id: list(each) for cgroup_id, each in grown.items()}
        if self._is_hierarchical:
            for cgroup_id, each in grown.items():
                if above := own.get(parents[cgroup_id]):
                    above[:] = [max(n - part, 0) for n, part in zip(above, each, strict=True)]
        return [
            MemcgEvent(now_ns, cgroup_id, name, count)
            for cgroup_id, each in own.items()
            for name, count in zip(NAMES, each, strict=True)
            if count
        ]


def _counts(sample: MemcgSample) -> _Counts:
    return sample.high_events, sample.max_events, sample.oom_events, sample.oom_kill_events
