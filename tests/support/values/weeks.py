"""Weeks of shadow mode for what renders them."""

from __future__ import annotations

from koordebpf.decision.what_if.week import Lead, NodeCounts, ShadowCounts, ShadowDay, ShadowWeek
from koordebpf.units import GIB


def week(days: int = 7, name: str = "eager") -> ShadowWeek:
    """Return one of so many days, with two configurations; of the first day one of them has no counts."""
    counts = ShadowCounts(
        evictions=3,
        freed_bytes=2 * GIB,
        same=1,
        needless=1,
        in_time=1,
        above_s=90.0,
        over_kubelet=Lead(2, 5.0, 1.0, 4.0),
    )
    node = NodeCounts(watched_s=86_400.0, rounds=86_400, evictions=2, above_s=60.0, kubelet=1, oom_kills=1)
    made = ShadowWeek(
        node="node-1",
        kubelet_hard_bytes=100 << 20,
        settings={name: {"memoryEvictThresholdPercent": 75}, "enforced": {}},
        problems={"enforced": "none is set"},
    )
    for day in range(1, days + 1):
        shadows = {name: counts} if day == 1 else {name: counts, "enforced": counts}
        made = made.with_day(ShadowDay(day=f"2027-01-{day:02}", node=node, shadows=shadows))
    return made
