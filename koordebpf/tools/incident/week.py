"""The week of shadow mode as one HTML file: what other configurations would have done, by day. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from koordebpf import __version__
from koordebpf.decision.what_if.week import DEFINITIONS, Lead, NodeCounts, ShadowCounts, ShadowDay, ShadowWeek
from koordebpf.tools.incident.charts import Child, Column, Node, chart_section, charts_json, element, facts, table
from koordebpf.tools.incident.page import section, whole_page
from koordebpf.tools.incident.values import ABSENT, Chart, Series
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


def week_page(weeks: Sequence[ShadowWeek], source: str) -> str:
    """Return the page of the nodes' weeks, of one at least."""
    sections: list[Node] = []
    charts: list[Chart] = []
    for number, week in enumerate(weeks, start=1):
        chart = _chart(week, number)
        sections.append(_totals(week, number))
        if chart is not None:
            charts.append(chart)
            sections.append(chart_section(chart, ()))
    sections.append(_definitions(is_dry_run=any(week.is_dry_run for week in weeks)))
    nodes = ", ".join(week.node for week in weeks)
    # Of one node the heading has its name.
    of_node = {week.node: f"{week.node}: " if len(weeks) > 1 else "" for week in weeks}
    answers = [f"{of_node[week.node]}{answer(week, name)}" for week in weeks for name in week.settings]
    lead = [element("p", text, class_="lead") for text in answers]
    title = f"Shadow mode on {nodes}"
    foot = f"Made by koordebpf {__version__} from {source}. koordebpf shadow prints the same."
    return whole_page(title, title, lead, sections, foot, charts_json(charts, ()) if charts else None)


def _totals(week: ShadowWeek, number: int) -> Node:
    names = list(week.settings)
    node, totals = week.node_total(), [week.total(name) for name in names]
    columns = [Column("Counted"), *(Column(name, is_number=True) for name in names)]
    rows: list[list[Child]] = [[_title(row.label), *(_cell(row, each, node) for each in totals)] for row in COUNTED]
    settings = [(name, _settings(week, name)) for name in names]
    return section(
        f"node-{number}",
        f"{week.node}, {days_said(week)}",
        facts([*_node(week, node), *settings]),
        table(f"What each configuration came to on {week.node}", columns, rows),
        *_days(week, names),
    )


def _cell(row: Counted, counts: ShadowCounts, node: NodeCounts) -> str:
    value = row.value(counts, node)
    return ABSENT if value is None else f"{value} {row.unit}".rstrip()


def _title(label: str) -> str:
    return f"{label[:1].upper()}{label[1:]}"


def _node(week: ShadowWeek, node: NodeCounts) -> list[tuple[str, Child]]:
    mode = "dry run" if week.is_dry_run else f"enforcing: {pods(node.really)} really evicted"
    acting = f"{node.evictions} evictions, {node.above_s / 60:.1f} min above its threshold"
    hard = f"{format_bytes(week.kubelet_hard_bytes)}, crossed {times(node.kubelet)}"
    return [
        ("Watched", f"{node.watched_s / 3600:.1f} h"),
        ("The acting configuration", f"{mode}; {acting}"),
        ("Kubelet's hard threshold", hard),
        ("OOM kills by the kernel", str(node.oom_kills)),
    ]


def _settings(week: ShadowWeek, name: str) -> str:
    text, problem = configured(week, name), week.problems.get(name)
    return f"{text}; it has no memory threshold in force: {problem}" if problem else text


def _days(week: ShadowWeek, names: Sequence[str]) -> list[Node]:
    if not week.days:
        return []
    columns = [Column("Day, UTC"), *(Column(name, is_number=True) for name in (*map(_title, DAY_HEAD), *names))]
    rows: list[list[Child]] = []
    for each in week.days:
        counts = [each.node.evictions, each.node.kubelet, each.node.oom_kills, *evictions_of(each, week)]
        rows.append([each.day, *(ABSENT if count is None else str(count) for count in counts)])
    return [table(f"Counts by day on {week.node}", columns, rows)]


def _chart(week: ShadowWeek, number: int) -> Chart | None:
    if len(week.days) < 2:
        return None
    days_s = tuple(datetime.fromisoformat(each.day).replace(tzinfo=UTC).timestamp() for each in week.days)
    series = [Series("acting", "line", tuple(float(each.node.evictions) for each in week.days))]
    by_day = [evictions_of(each, week) for each in week.days]
    for name, counts in zip(week.settings, zip(*by_day, strict=True), strict=True):
        series.append(Series(name, "line", tuple(None if count is None else float(count) for count in counts)))
    title = f"Evictions by day on {week.node}"
    note = "Of the acting configuration, and of the others, had they acted."
    return Chart(f"evictions-{number}", title, "count", days_s, tuple(series), note)


def _definitions(*, is_dry_run: bool) -> Node:
    said: list[tuple[str, Child]] = [(word(name), text) for name, text in DEFINITIONS.items()]
    notes = [element("p", text) for text in ((UNKNOWN, DRY_RUN) if is_dry_run else (UNKNOWN,))]
    return section("definitions", "What is counted", facts(said), *notes)
