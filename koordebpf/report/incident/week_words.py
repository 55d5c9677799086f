"""What the pages of shadow mode say of a week, on a terminal and in a browser: answers, counts and leads. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from koordebpf.decision.what_if.week import Lead, NodeCounts, ShadowCounts, ShadowDay, ShadowWeek
from koordebpf.units import GIB, format_bytes

UNKNOWN = (
    "Cannot be known: what the node would have done after an eviction that did not happen. A shadow configuration's "
    "node is the real one without the pods that it evicted, until they really are gone, and with pods that really were "
    "evicted and that it kept, with their last known usage, for ten minutes at most. kubelet counts active page cache "
    "as used: of a machine its threshold may be crossed earlier than is said here."
)
DRY_RUN = (
    "In a dry run nothing relieves the acting configuration's node, so that it names more pods, and earlier: what it "
    "would do is that of a configuration without settings."
)
DAY_HEAD = ("acting", "kubelet", "OOM kills")  # before the configurations


class Counted(NamedTuple):
    """A count of a configuration, with its unit apart; None: there is nothing to say of it."""

    label: str
    unit: str
    value: Callable[[ShadowCounts, NodeCounts], str | None]


COUNTED = (
    Counted("evictions", "", lambda each, _: str(each.evictions)),
    Counted("memory freed", "GiB", lambda each, _: f"{each.freed_bytes / GIB:.1f}"),
    Counted("same as acting", "", lambda each, _: str(each.same)),
    Counted("avoided", "", lambda each, _: str(each.avoided)),
    Counted("needless", "", lambda each, _: str(each.needless)),
    Counted("in time", "", lambda each, _: str(each.in_time)),
    Counted("too late", "", lambda each, _: str(each.too_late)),
    Counted("above its threshold", "min", lambda each, _: f"{each.above_s / 60:.1f}"),
    Counted("lead over acting", "s", lambda each, _: _lead(each.over_acting)),
    Counted("lead over kubelet", "s", lambda each, _: _lead(each.over_kubelet)),
    Counted("lead over OOM kills", "s", lambda each, _: _lead(each.over_oom)),
    Counted("not the real node", "%", lambda each, node: _share(each.apart_s, node.watched_s)),
)


def _lead(lead: Lead) -> str | None:
    if lead.mean_s is None:
        return None
    return f"{lead.mean_s:.1f}" if lead.count == 1 else f"{lead.mean_s:.1f} ({lead.least_s:.1f}…{lead.most_s:.1f})"


def _share(part_s: float, whole_s: float) -> str | None:
    return f"{100 * part_s / whole_s:.0f}" if whole_s > 0 else None


def answer(week: ShadowWeek, name: str) -> str:
    """Return in a sentence what a configuration would have done."""
    counts, node = week.total(name), week.node_total()
    sentence = (
        f"{name} would have evicted {pods(counts.evictions)}, {format_bytes(counts.freed_bytes)}: "
        f"{counts.needless} needlessly, and in time for {counts.in_time} of {node.kubelet + node.oom_kills} "
        "crossings and OOM kills"
    )
    lead = counts.over_kubelet.with_all(counts.over_oom)
    return f"{sentence}, {lead.mean_s:.1f} s before them on average." if lead.mean_s is not None else f"{sentence}."


def configured(week: ShadowWeek, name: str) -> str:
    """Return what differs from the acting configuration."""
    said = ", ".join(f"{key}={value}" for key, value in week.settings[name].items())
    return said or "as the acting one, enforced"


def days_said(week: ShadowWeek) -> str:
    """Return from which day to which."""
    return f"{week.days[0].day} to {week.days[-1].day}" if week.days else "no day yet"


def evictions_of(day: ShadowDay, week: ShadowWeek) -> list[int | None]:
    """Return evictions of each configuration of the week; None: it was not there on that day."""
    found = (day.shadows.get(name) for name in week.settings)
    return [None if each is None else each.evictions for each in found]


def word(name: str) -> str:
    """Return a name of `DEFINITIONS` as the pages write it.

    >>> word("in_time"), word("same"), word("oom_kills")
    ('in time', 'same as acting', 'OOM kills')
    """
    return {"same": "same as acting", "oom_kills": "OOM kills"}.get(name, name.replace("_", " "))


def pods(count: int) -> str:
    """Return how many pods.

    >>> pods(1), pods(2)
    ('1 pod', '2 pods')
    """
    return "1 pod" if count == 1 else f"{count} pods"


def times(count: int) -> str:
    """Return how often.

    >>> times(1), times(2)
    ('once', '2 times')
    """
    return "once" if count == 1 else f"{count} times"
