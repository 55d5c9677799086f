"""Memory stalls of the last seconds, by pod and for the node, out of the kernel's running sums."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from koordebpf.events.records import CgroupStall, StallSum
from koordebpf.state.measured import StallParts, StallSample
from koordebpf.units import NS_PER_MS, NS_PER_S

LONGEST_NS = 125 * NS_PER_S  # Why: the longest `eviction.stall.seconds`, and a few samples more
_SPACING_NS = 900 * NS_PER_MS  # Why: every look each second is kept, and none of the faster ones between
_CALM_RATIO = 0.01  # Why: the least `eviction.stall.fullPercent`; what is less ends every window
NODE = ""  # key of the node's own row; no pod has an empty uid
_ZERO = CgroupStall(0, StallSum(), StallSum())


class StallGrowth(msgspec.Struct):
    """What was added since the push before; no nanosecond stands in two of the parts."""

    global_ns: int = 0
    limit_ns: int = 0
    global_count: int = 0
    limit_count: int = 0
    compaction_ns: int = 0
    other_global_ns: int = 0
    other_limit_ns: int = 0

    @property
    def own_limit_ns(self) -> int:
        """What a limit below the node cost."""
        return own_limit_ns(self)

    @property
    def total_ns(self) -> int:
        """All of it."""
        return self.global_ns + self.limit_ns + self.compaction_ns + self.other_global_ns + self.other_limit_ns

    def add(self, other: StallGrowth) -> None:
        """Add what another cgroup, or the same one at another time, stalled."""
        self.global_ns += other.global_ns
        self.limit_ns += other.limit_ns
        self.global_count += other.global_count
        self.limit_count += other.limit_count
        self.compaction_ns += other.compaction_ns
        self.other_global_ns += other.other_global_ns
        self.other_limit_ns += other.other_limit_ns


def own_limit_ns(of: StallGrowth | StallParts) -> int:
    """Return what a limit below the node cost; compaction too where nothing but such a limit held the tasks up."""
    is_limit_only = of.limit_ns + of.other_limit_ns and not of.global_ns + of.other_global_ns
    return of.limit_ns + of.other_limit_ns + (of.compaction_ns if is_limit_only else 0)


class StallSums:
    """The kernel's running sums as they were last, so that the next ones tell what was added.

    The sums grow for as long as a cgroup lives; a cgroup that is made again under an old id, or programs that were
    reloaded, start at zero, which reads as a sum that fell and counts from zero.
    """

    def __init__(self) -> None:
        self._last: dict[int, CgroupStall] = {}

    def push(self, stalls: Iterable[CgroupStall]) -> dict[int, StallGrowth]:
        """Take the sums as they are now; return what was added, by cgroup id, for those that stalled since."""
        grown: dict[int, StallGrowth] = {}
        last: dict[int, CgroupStall] = {}
        for stall in stalls:
            last[stall.cgroup_id] = stall
            before = self._last.get(stall.cgroup_id, _ZERO)
            if before is not stall and (row := _growth(before, stall)).total_ns:
                grown[stall.cgroup_id] = row
        self._last = last
        return grown


def _growth(before: CgroupStall, now: CgroupStall) -> StallGrowth:
    if any(
        was.total_ns > its.total_ns or was.count > its.count
        for was, its in (
            (before.global_, now.global_),
            (before.limit, now.limit),
            (before.compaction, now.compaction),
            (before.other_global, now.other_global),
            (before.other_limit, now.other_limit),
        )
    ):
        before = _ZERO
    return StallGrowth(
        now.global_.total_ns - before.global_.total_ns,
        now.limit.total_ns - before.limit.total_ns,
        now.global_.count - before.global_.count,
        now.limit.count - before.limit.count,
        now.compaction.total_ns - before.compaction.total_ns,
        now.other_global.total_ns - before.other_global.total_ns,
        now.other_limit.total_ns - before.other_limit.total_ns,
    )


class StallWindow:
    """Keeps what each pod stalled within the last `window_ns`."""

    def __init__(self, window_ns: int = 10_000_000_000) -> None:
        self.window_ns = window_ns
        self._sums = StallSums()
        self._pushes: deque[tuple[int, dict[str, StallGrowth]]] = deque()

    def push(
        self, now_ns: int, stalls: Iterable[CgroupStall], pod_of: Callable[[int], str | None]
    ) -> dict[str, StallGrowth]:
        """Take the sums as they are at `now_ns`; return what each pod, and the node as `NODE`, stalled since then.

        `pod_of` gives the pod of each cgroup that has one.
        """
        return self.add(now_ns, self._sums.push(stalls), pod_of)

    def add(
        self, now_ns: int, by_cgroup: Mapping[int, StallGrowth], pod_of: Callable[[int], str | None]
    ) -> dict[str, StallGrowth]:
        """Take what cgroups stalled since the last time, as `StallSums` tells; return it by pod, as `push` does."""
        grown: dict[str, StallGrowth] = {}
        for cgroup_id, row in by_cgroup.items():
            for key in (pod_of(cgroup_id), NODE):
                if key is not None:
                    grown.setdefault(key, StallGrowth()).add(row)
        if grown:
            self._pushes.append((now_ns, grown))
        self.forget_older(now_ns)
        return grown

    def forget_older(self, now_ns: int) -> None:
        """Drop what lies before the window that ends at `now_ns`."""
        while self._pushes and self._pushes[0][0] <= now_ns - self.window_ns:
            self._pushes.popleft()

    def rows(self) -> dict[str, StallParts]:
        """Return the window's stall of every pod that stalled in it, by uid, and of the node under `NODE`."""
        sums: dict[str, StallGrowth] = {}
        for _, grown in self._pushes:
            for key, row in grown.items():
                sums.setdefault(key, StallGrowth()).add(row)
        return {
            key: StallParts(
                self.window_ns,
                row.global_ns,
                row.limit_ns,
                row.global_count,
                row.limit_count,
                row.compaction_ns,
                row.other_global_ns,
                row.other_limit_ns,
            )
            for key, row in sums.items()
        }


# How much latency-sensitive pods stall for the node's shortage, and since when: the window of the stall net. Pure.
#
# A stall at a limit of the pod's own never counts. Where it cannot be separated, or the kernel does not say when all
# tasks of a pod wait at once, only bounds are known; decisions use the lower one.


class StalledPod(msgspec.Struct, frozen=True):
    """What was measured of one latency-sensitive pod that stalled. Shares 0 to 1, of the last 10 s.

    `full_ratio` None: the kernel does not say when all of its tasks wait. `is_derived`: the shares are made of the
    timed stalls, else they are those of memory.pressure, which holds every wait. `meets_high`: it was reclaimed for
    a memory.high of its own, which no stall record tells apart.
    """

    name: str
    stall: StallParts
    some_ratio: float
    full_ratio: float | None
    is_derived: bool
    meets_high: bool = False


def full_stall_bounds(pod: StalledPod, *, is_whole: bool) -> tuple[float, float]:
    """Return the least and the most of the time in which the whole pod waits for the node's memory.

    The most: no longer than all tasks waited, and no longer than any task waited for the node. The least: of the time
    in which all waited, what limits of its own cost all tasks together is taken away.
    """
    stall, window_ns = pod.stall, max(pod.stall.window_ns, 1)
    own_ns = own_limit_ns(stall)
    shortage = min((stall.total_ns - own_ns) / window_ns, 1.0)
    waited = min(pod.full_ratio or 0.0, 1.0)
    # What is derived is the `full` of one container at least: another one may wait for longer.
    longest = min(pod.some_ratio if pod.full_ratio is None or pod.is_derived else waited, 1.0)
    # Refaults that no program times are in memory.pressure all the same.
    misses_some = not is_whole and not pod.is_derived
    most = longest if misses_some else min(longest, shortage)
    meets_limit = bool(own_ns or stall.limit_count)
    if pod.full_ratio is None or pod.meets_high or (misses_some and meets_limit):
        return 0.0, most
    return min(max(waited - own_ns / window_ns, 0.0), shortage, most), most


def stall_sample(now_ns: int, pods: Iterable[StalledPod], *, is_whole: bool) -> StallSample:
    """Return the look at `now_ns`; `pods` are the latency-sensitive ones that stalled in the last 10 s."""
    least, most = (0.0, ""), (0.0, "")
    for pod in pods:
        low, high = full_stall_bounds(pod, is_whole=is_whole)
        least = max(least, (low, pod.name))
        most = max(most, (high, pod.name))
    return StallSample(now_ns, least[0], most[0], least[1] if least[0] else "", most[1] if most[0] else "", is_whole)


def extended(window: tuple[StallSample, ...], sample: StallSample) -> tuple[StallSample, ...]:
    """Return the window with one more look: the newest last, 139 at most.

    Nothing before a calm moment counts any more, so that a node without stalls keeps one sample.
    """
    if sample.at_most_ratio < _CALM_RATIO:
        return (sample,)
    if window and sample.at_ns - window[-1].at_ns < _SPACING_NS:
        return window
    return (*(each for each in window if sample.at_ns - each.at_ns <= LONGEST_NS), sample)
