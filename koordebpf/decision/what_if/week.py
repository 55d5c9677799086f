"""What shadow configurations came to, by day: one value that outlives the agent, and that reports are made from. Pure.

Each count is defined in one sentence, in `DEFINITIONS`, which help and reports print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

KEPT_DAYS = 8  # a week, and today
NEAR_S = 300  # Why: a shortage of memory is over, or has been met, within five minutes

DEFINITIONS: Mapping[str, str] = {
    "evictions": "Pods that this configuration would have evicted; an evicted pod counts once until it really is gone.",
    "acting": "Pods that the acting configuration evicted; in a dry run, that it would have: each once in 5 min.",
    "same": "Evictions of this configuration of pods that the acting one evicted too, within 5 min.",
    "avoided": "Evictions of the acting configuration of pods that this one did not evict within 5 min.",
    "needless": (
        "Evictions of pods that really stayed, and in the 5 min after them the node neither reached kubelet's hard "
        "threshold nor had an OOM kill."
    ),
    "in_time": "Crossings of kubelet's hard threshold and OOM kills with an eviction within the 5 min before.",
    "too_late": "Crossings of kubelet's hard threshold and OOM kills without an eviction within the 5 min before.",
    "kubelet": (
        "Times that the node came to have less available than kubelet's hard threshold, 1 min or more after the last."
    ),
    "oom_kills": "Kills by the kernel because the node's memory was used up, not because of a pod's own limit.",
    "lead": (
        "How long before another did this one evicted: the same pod, or before a crossing or OOM kill the first of its "
        "evictions that followed each other within a minute."
    ),
}


class Lead(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long before something else evictions came. Seconds; negative: after it."""

    count: int = 0
    sum_s: float = 0.0
    least_s: float = 0.0
    most_s: float = 0.0

    def with_one(self, lead_s: float) -> Lead:
        """Return it with one more."""
        return self.with_all(Lead(1, lead_s, lead_s, lead_s))

    def with_all(self, other: Lead) -> Lead:
        """Return both as one."""
        if not (self.count and other.count):
            return self if self.count else other
        least_s, most_s = min(self.least_s, other.least_s), max(self.most_s, other.most_s)
        return Lead(self.count + other.count, self.sum_s + other.sum_s, least_s, most_s)

    @property
    def mean_s(self) -> float | None:
        """The mean; None: there was none."""
        return self.sum_s / self.count if self.count else None


class ShadowCounts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one configuration came to in some time; the words are those of `DEFINITIONS`.

    `above_s`: its node was at or above its threshold. `apart_s`: its node was not the real one.
    """

    evictions: int = 0
    freed_bytes: int = 0
    same: int = 0
    avoided: int = 0
    needless: int = 0
    in_time: int = 0
    too_late: int = 0
    above_s: float = 0.0
    apart_s: float = 0.0
    over_acting: Lead = Lead()
    over_kubelet: Lead = Lead()
    over_oom: Lead = Lead()

    def with_all(self, other: ShadowCounts) -> ShadowCounts:
        """Return both as one."""
        found: dict[str, Any] = {}
        for name in self.__struct_fields__:
            first, second = getattr(self, name), getattr(other, name)
            found[name] = first.with_all(second) if isinstance(first, Lead) else first + second
        return ShadowCounts(**found)


class NodeCounts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the node itself went through in some time, with the acting configuration.

    `really`: of its evictions, those that were sent; in a dry run, none.
    """

    watched_s: float = 0.0
    rounds: int = 0
    evictions: int = 0
    really: int = 0
    above_s: float = 0.0
    kubelet: int = 0
    oom_kills: int = 0

    def with_all(self, other: NodeCounts) -> NodeCounts:
        """Return both as one."""
        return NodeCounts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class ShadowDay(msgspec.Struct, frozen=True, kw_only=True):
    """One day in UTC, as 2026-03-01."""

    day: str
    node: NodeCounts = NodeCounts()
    shadows: dict[str, ShadowCounts] = {}


class ShadowWeek(msgspec.Struct, frozen=True, kw_only=True):
    """The last days, the newest last. `settings`: of each configuration, what differs from the acting one."""

    schema: Literal["koordebpf.shadow/v1"] = "koordebpf.shadow/v1"
    node: str = ""
    is_dry_run: bool = True
    kubelet_hard_bytes: int = 0
    settings: dict[str, dict[str, bool | int | float | str | None]] = {}
    problems: dict[str, str] = {}  # why a configuration has no memory threshold in force, by name
    days: tuple[ShadowDay, ...] = ()

    def with_day(self, day: ShadowDay) -> ShadowWeek:
        """Return it with this day's counts added to those that are there; the oldest days are dropped."""
        found = {each.day: each for each in self.days}
        if (was := found.get(day.day)) is not None:
            names = {**was.shadows, **day.shadows}
            none = ShadowCounts()
            shadows = {name: was.shadows.get(name, none).with_all(day.shadows.get(name, none)) for name in names}
            day = ShadowDay(day=day.day, node=was.node.with_all(day.node), shadows=shadows)
        found[day.day] = day
        return replace(self, days=tuple(found[each] for each in sorted(found)[-KEPT_DAYS:]))

    def known(self) -> ShadowWeek:
        """Return it with those configurations alone that are set now: what others came to is dropped."""
        days = tuple(
            replace(each, shadows={name: counts for name, counts in each.shadows.items() if name in self.settings})
            for each in self.days
        )
        return replace(self, days=days)

    def node_total(self) -> NodeCounts:
        """Return what the node went through in all of these days."""
        total = NodeCounts()
        for each in self.days:
            total = total.with_all(each.node)
        return total

    def total(self, name: str) -> ShadowCounts:
        """Return what a configuration came to in all of these days."""
        total = ShadowCounts()
        for each in self.days:
            total = total.with_all(each.shadows.get(name, ShadowCounts()))
        return total
