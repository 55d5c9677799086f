"""Reclaim stalls of the last seconds, by pod and for the node, out of the kernel's running sums."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from koordebpf.events.records import CgroupStall
from koordebpf.state.view import StallParts

NODE = ""  # key of the node's own row; no pod has an empty uid


class StallGrowth(msgspec.Struct):
    """What was added since the push before."""

    global_ns: int = 0
    limit_ns: int = 0
    global_count: int = 0
    limit_count: int = 0


class StallWindow:
    """Keeps what each pod stalled within the last `window_ns`.

    The kernel's sums grow for as long as a cgroup lives; a cgroup that is made again under an old id starts at zero,
    which reads as a sum that fell and counts from zero.
    """

    def __init__(self, window_ns: int = 10_000_000_000) -> None:
        self.window_ns = window_ns
        self._last: dict[int, CgroupStall] = {}
        self._pushes: deque[tuple[int, dict[str, StallGrowth]]] = deque()

    def push(
        self, now_ns: int, stalls: Iterable[CgroupStall], pod_of: Callable[[int], str | None]
    ) -> dict[str, StallGrowth]:
        """Take the sums as they are at `now_ns`; return what each pod, and the node as `NODE`, stalled since then.

        `pod_of` gives the pod of each cgroup that has one.
        """
        grown: dict[str, StallGrowth] = {}
        last: dict[int, CgroupStall] = {}
        for stall in stalls:
            last[stall.cgroup_id] = stall
            before = self._last.get(stall.cgroup_id)
            if before is stall or before == stall:
                continue
            if before and (before.global_.count > stall.global_.count or before.limit.count > stall.limit.count):
                before = None
            for key in (pod_of(stall.cgroup_id), NODE):
                if key is None:
                    continue
                row = grown.setdefault(key, StallGrowth())
                row.global_ns += stall.global_.total_ns - (before.global_.total_ns if before else 0)
                row.limit_ns += stall.limit.total_ns - (before.limit.total_ns if before else 0)
                row.global_count += stall.global_.count - (before.global_.count if before else 0)
                row.limit_count += stall.limit.count - (before.limit.count if before else 0)
        self._last = last
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
                total = sums.setdefault(key, StallGrowth())
                total.global_ns += row.global_ns
                total.limit_ns += row.limit_ns
                total.global_count += row.global_count
                total.limit_count += row.limit_count
        return {
            key: StallParts(self.window_ns, row.global_ns, row.limit_ns, row.global_count, row.limit_count)
            for key, row in sums.items()
        }
