"""Which share of the time each cgroup stalled, as PSI would show it, out of the kernel's stall sums.

For what has no memory.pressure file: cgroup v1, and kernels that were booted with psi=0. Pure.

`some` here is the time in which any task waited. PSI's own is that on one CPU. On several it is less: PSI keeps times
for each CPU and takes their mean, weighted by how busy the cgroup keeps it (kernel/sched/psi.c, collect_percpu_times),
so that a task which waits on one while another runs counts for a part; tests/host/test_shares.py prints how much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from koordebpf.events.records import CgroupStall
from koordebpf.state.measured import PsiLine, StallShares
from koordebpf.units import NS_PER_S

_AVERAGES_S = (10, 60, 300)  # kernel/sched/psi.c EXP_10s, EXP_60s, EXP_300s
_NS_PER_US = 1000


class DecayingShare:
    """A stalled time that only grows, and its share of the last 10, 60 and 300 s, each weighing the past as PSI does.

    PSI takes over the share of each 2 s that passed; here it is that of the time between two pushes.

    Source:  kernel/sched/psi.c calc_avgs.
    """

    __slots__ = ("_at_ns", "_ratios", "total_ns")

    def __init__(self, now_ns: int) -> None:
        self._at_ns = now_ns
        self._ratios = (0.0, 0.0, 0.0)
        self.total_ns = 0

    def push(self, now_ns: int, total_ns: int) -> None:
        """Take the sum as it is at `now_ns`; it must not fall."""
        self._ratios = self._until(now_ns, total_ns - self.total_ns)
        self._at_ns = max(now_ns, self._at_ns)
        self.total_ns = total_ns

    def line(self, now_ns: int) -> PsiLine:
        """Return the averages as they are at `now_ns` if nothing stalled since the last push."""
        avg10, avg60, avg300 = self._until(now_ns, 0)
        return PsiLine(100 * avg10, 100 * avg60, 100 * avg300, self.total_ns // _NS_PER_US)

    def _until(self, now_ns: int, stalled_ns: int) -> tuple[float, float, float]:
        elapsed_ns = now_ns - self._at_ns
        if elapsed_ns <= 0:
            return self._ratios
        share = min(stalled_ns / elapsed_ns, 1.0)
        avg10, avg60, avg300 = (
            share + (ratio - share) * math.exp(-elapsed_ns / (window_s * NS_PER_S))
            for ratio, window_s in zip(self._ratios, _AVERAGES_S, strict=True)
        )
        return avg10, avg60, avg300


class _Entry:
    __slots__ = ("is_alone", "row", "share")

    def __init__(self, since_ns: int) -> None:
        self.share = DecayingShare(since_ns)
        self.row: CgroupStall | None = None
        self.is_alone = True  # each time it had stalled it was found with one task, or none any more


class ShareTable:
    """Stall shares of every cgroup that stalled, by cgroup id."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._pushed_ns: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def stalled_since(self, stalls: Iterable[CgroupStall]) -> list[int]:
        """Return the ids of those rows that stalled since the last push: whose tasks `push` wants to know."""
        return [row.cgroup_id for row in stalls if self._has_news(row)]

    def push(self, now_ns: int, stalls: Iterable[CgroupStall], tasks: Mapping[int, int]) -> None:
        """Take the sums as they are at `now_ns`; a cgroup that is not among them any more is forgotten.

        Args:
            now_ns: CLOCK_MONOTONIC when the sums were read.
            stalls: all rows. A parent's is the union over its children.
            tasks: how many tasks a cgroup has, those of its children included, as far as that is known.
        """
        # What a row has more now was stalled since the last push.
        since_ns = now_ns if self._pushed_ns is None else self._pushed_ns
        entries: dict[int, _Entry] = {}
        for row in stalls:
            entry = self._entries.get(row.cgroup_id)
            if self._has_news(row):
                if entry is None or some_ns(row, now_ns) < entry.share.total_ns:
                    entry = _Entry(since_ns)  # it is new, or another one under an old id
                entry.share.push(since_ns, entry.share.total_ns)
                entry.share.push(now_ns, some_ns(row, now_ns))
                entry.is_alone = entry.is_alone and tasks.get(row.cgroup_id, 2) <= 1
                entry.row = row
            if entry is not None:
                entries[row.cgroup_id] = entry
        self._entries = entries
        self._pushed_ns = now_ns

    def shares(self, cgroup_id: int, now_ns: int) -> StallShares | None:
        """Return the shares of one cgroup; None: it never stalled.

        `full`, the time in which all tasks that want to run stall at once, is `some` where there is only one task. With
        more it takes the scheduler's knowledge of who wants to run, which no stall record holds.
        """
        entry = self._entries.get(cgroup_id)
        if entry is None:
            return None
        line = entry.share.line(now_ns)
        return StallShares(line, line if entry.is_alone else None, derived=True)

    def shares_of_parent(self, cgroup_id: int, children: Sequence[int], now_ns: int) -> StallShares | None:
        """Return the shares of a cgroup with children: by its own row where it has one, else the bounds they give.

        The kernel side keeps the union for the parent of a cgroup that stalls, and for none above that.
        """
        own = self.shares(cgroup_id, now_ns)
        if own is not None:
            return own
        below = [share.some for child in children if (share := self.shares(child, now_ns)) is not None]
        if len(below) <= 1:
            # Its siblings did not stall, but may have run meanwhile: `full` is not known.
            return StallShares(below[0], None, derived=True) if below else None
        low, high = union_bounds(below)
        return StallShares(low, None, derived=True, some_at_most=high)

    def _has_news(self, row: CgroupStall) -> bool:
        entry = self._entries.get(row.cgroup_id)
        if entry is None or entry.row is None:
            return bool(row.some_ns or row.stalled)
        return bool(row.some_ns != entry.row.some_ns or row.stalled or entry.row.stalled)


def some_ns(row: CgroupStall, now_ns: int) -> int:
    """Return how long at least one task of the cgroup was stalled up to now."""
    return lasting_ns(row.some_ns, row.changed_ts_ns, row.stalled, now_ns)


def lasting_ns(some: int, changed_ts_ns: int, stalled: int, now_ns: int) -> int:
    """Return a stalled time up to now: what it was at its last change, and the time since then while tasks stall."""
    return some + (max(now_ns - changed_ts_ns, 0) if stalled else 0)


def union_bounds(lines: Sequence[PsiLine]) -> tuple[PsiLine, PsiLine]:
    """Return the least and the most that the union over children can be: the largest, and their sum or all the time.

    A union of times is no shorter than the longest of them and no longer than all, one after the other.
    """
    avg10, avg60, avg300 = ([getattr(line, name) for line in lines] for name in ("avg10", "avg60", "avg300"))
    totals_us = [line.total_us for line in lines]
    return (
        PsiLine(max(avg10), max(avg60), max(avg300), max(totals_us)),
        PsiLine(min(sum(avg10), 100.0), min(sum(avg60), 100.0), min(sum(avg300), 100.0), sum(totals_us)),
    )
