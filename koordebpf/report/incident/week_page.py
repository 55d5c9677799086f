"""The week of shadow mode as one HTML file: what other configurations would have done, by day. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from koordebpf import __version__
from koordebpf.policy.what_if.week import DEFINITIONS, Lead, NodeCounts, ShadowCounts, ShadowWeek
from koordebpf.report.incident.amounts import ABSENT
from koordebpf.report.incident.charts import chart_section, charts_json
from koordebpf.report.incident.markup import Child, Column, Node, element, facts, table
from koordebpf.report.incident.page import whole_page
from koordebpf.report.incident.parts import section
from koordebpf.report.incident.values import Chart, Series
from koordebpf.units import format_bytes

_ROWS: tuple[tuple[str, Callable[[ShadowCounts], str]], ...] = (
    ("Evictions", lambda each: str(each.evictions)),
    ("Memory freed", lambda each: format_bytes(each.freed_bytes)),
    ("Same as the acting one", lambda each: str(each.same)),
    ("Avoided", lambda each: str(each.avoided)),
    ("Needless", lambda each: str(each.needless)),
    ("In time", lambda each: str(each.in_time)),
    ("Too late", lambda each: str(each.too_late)),
    ("Above its threshold", lambda each: f"{each.above_s / 60:.1f} min"),
    ("Lead over the acting one", lambda each: _lead(each.over_acting)),
    ("Lead over kubelet", lambda each: _lead(each.over_kubelet)),
    ("Lead over OOM kills", lambda each: _lead(each.over_oom)),
    ("Its node was not the real one", lambda each: f"{each.apart_s / 60:.1f} min"),
)
_UNKNOWN = (
    "Cannot be known: what the node would have done after an eviction that did not happen. A shadow node is"
    " the real one without the pods that it evicted, and with those that it kept as they last were."
)


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
    sections.append(_definitions())
    nodes = ", ".join(week.node for week in weeks)
    lead = [element("p", _answer(week, name), class_="lead") for week in weeks for name in week.settings]
    title = f"Shadow mode on {nodes}"
    foot = f"Made by koordebpf {__version__} from {source}. koordebpf shadow prints the same."
    return whole_page(title, title, lead, sections, foot, charts_json(charts, ()) if charts else None)


def _answer(week: ShadowWeek, name: str) -> str:
    counts, node = week.total(name), week.node_total()
    events = node.kubelet + node.oom_kills
    return (
        f"{name} would have evicted {counts.evictions} pods, {format_bytes(counts.freed_bytes)}: {counts.needless}"
        f" needlessly, and in time for {counts.in_time} of {events} crossings of kubelet's threshold and OOM kills."
    )


def _totals(week: ShadowWeek, number: int) -> Node:
    names = list(week.settings)
    columns = [Column("Counted"), *(Column(name, is_number=True) for name in names)]
    totals = {name: week.total(name) for name in names}
    rows: list[list[Child]] = [[label, *(form(totals[name]) for name in names)] for label, form in _ROWS]
    configured = [(name, _settings(week, name)) for name in names]
    return section(
        f"node-{number}",
        f"{week.node}, {_span(week)}",
        facts([*_node(week, week.node_total()), *configured]),
        table(f"What each configuration came to on {week.node}", columns, rows),
        *_days(week, names),
    )


def _span(week: ShadowWeek) -> str:
    return f"{week.days[0].day} to {week.days[-1].day}" if week.days else "no day yet"


def _node(week: ShadowWeek, node: NodeCounts) -> list[tuple[str, Child]]:
    mode = "dry run" if week.is_dry_run else f"enforcing: {node.really} pods were really evicted"
    acting = f"{node.evictions} evictions, {node.above_s / 60:.1f} min above its threshold"
    hard = f"{format_bytes(week.kubelet_hard_bytes)}, crossed {node.kubelet} times"
    return [
        ("Watched", f"{node.watched_s / 3600:.1f} h"),
        ("The acting configuration", f"{mode}; {acting}"),
        ("Kubelet's hard threshold", hard),
        ("OOM kills by the kernel", str(node.oom_kills)),
    ]


def _settings(week: ShadowWeek, name: str) -> str:
    said = ", ".join(f"{key}={value}" for key, value in week.settings[name].items())
    problem = week.problems.get(name)
    text = said or "as the acting one, enforced"
    return f"{text}; it has no memory threshold in force: {problem}" if problem else text


def _days(week: ShadowWeek, names: Sequence[str]) -> list[Node]:
    if not week.days:
        return []
    heads = ("Acting", "Kubelet", "OOM kills", *names)
    columns = [Column("Day, UTC"), *(Column(name, is_number=True) for name in heads)]
    rows: list[list[Child]] = []
    for each in week.days:
        shadows = (each.shadows.get(name) for name in names)
        node = each.node
        counts = [node.evictions, node.kubelet, node.oom_kills]
        found = [ABSENT if counted is None else str(counted.evictions) for counted in shadows]
        rows.append([each.day, *map(str, counts), *found])
    return [table(f"Counts by day on {week.node}", columns, rows)]


def _chart(week: ShadowWeek, number: int) -> Chart | None:
    if len(week.days) < 2:
        return None
    times = tuple(datetime.fromisoformat(each.day).replace(tzinfo=UTC).timestamp() for each in week.days)
    series = [Series("acting", "line", tuple(float(each.node.evictions) for each in week.days))]
    for name in week.settings:
        found = [each.shadows.get(name) for each in week.days]
        series.append(Series(name, "line", tuple(None if one is None else float(one.evictions) for one in found)))
    title = f"Evictions by day on {week.node}"
    note = "Of the acting configuration, and of the others, had they acted."
    return Chart(f"evictions-{number}", title, "count", times, tuple(series), note)


def _definitions() -> Node:
    said: list[tuple[str, Child]] = [(word.replace("_", " "), text) for word, text in DEFINITIONS.items()]
    return section("definitions", "What is counted", facts(said), element("p", _UNKNOWN))


def _lead(lead: Lead) -> str:
    if lead.mean_s is None:
        return ABSENT
    if lead.count == 1:
        return f"{lead.mean_s:.1f} s"
    return f"{lead.mean_s:.1f} s ({lead.least_s:.1f} to {lead.most_s:.1f})"
