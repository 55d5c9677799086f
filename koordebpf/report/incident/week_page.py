"""The week of shadow mode as one HTML file: what other configurations would have done, by day. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from koordebpf import __version__
from koordebpf.decision.what_if.week import DEFINITIONS, NodeCounts, ShadowCounts, ShadowWeek
from koordebpf.report.incident.amounts import ABSENT
from koordebpf.report.incident.charts import chart_section, charts_json
from koordebpf.report.incident.markup import Child, Column, Node, element, facts, table
from koordebpf.report.incident.page import whole_page
from koordebpf.report.incident.parts import section
from koordebpf.report.incident.values import Chart, Series
from koordebpf.report.incident.week_words import (
    COUNTED,
    DAY_HEAD,
    DRY_RUN,
    UNKNOWN,
    Counted,
    answer,
    configured,
    days_said,
    evictions_of,
    pods,
    times,
    word,
)
from koordebpf.units import format_bytes


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
