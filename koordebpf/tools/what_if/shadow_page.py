"""What shadow configurations came to, for people: one page for a week."""

from __future__ import annotations

import textwrap
from pathlib import Path

from msgspec.structs import replace

from koordebpf.decision.what_if.week import DEFINITIONS, NodeCounts, ShadowDay, ShadowWeek
from koordebpf.errors import ConfigError
from koordebpf.report.pages.columns import WIDTH, filled, table_lines
from koordebpf.store.shadow.kept_week import read_week
from koordebpf.tools.incident.week import (
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

_NONE = "-"


def weeks_in(path: Path, days: int) -> list[ShadowWeek]:
    """Return what the file, or each file of a folder, has of the last days that something was counted on.

    Raises:  ConfigError: there is none, or it cannot be read.
    """
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        weeks = [read_week(each) for each in files]
    except OSError as error:
        raise ConfigError(str(path), error.strerror, "must be a file of shadow mode, or a folder of such") from error
    if not weeks:
        rule = "must have a file of shadow mode: an agent with shadow.configurations writes it"
        raise ConfigError(str(path), "no file", rule)
    return [replace(each, days=each.days[-days:]) for each in weeks]


def shadow_page(week: ShadowWeek, definitions: bool = True) -> str:
    """Return the page of one node."""
    node, names = week.node_total(), list(week.settings)
    lines = [*_head(week, node), ""]
    for name in names:
        lines += filled(answer(week, name))
    totals = [week.total(name) for name in names]
    rows = [(_heading(row), *(row.value(each, node) or _NONE for each in totals)) for row in COUNTED]
    lines += ["", *table_lines(("", *names), rows, 0), ""]
    if len(week.days) > 1:
        head = ("evictions by day", *DAY_HEAD, *names)
        lines += [*table_lines(head, [_day(week, each) for each in week.days], 0), ""]
    for name in names:
        lines += filled(f"{name}: {configured(week, name)}")
        if problem := week.problems.get(name):
            lines += filled(f"{name} has no memory threshold in force: {problem}", "  ")
    if definitions:
        lines += ["", *(line for name, text in DEFINITIONS.items() for line in filled(f"{word(name)}: {text}"))]
    said = f"{UNKNOWN} {DRY_RUN}" if week.is_dry_run else UNKNOWN
    return "\n".join([*lines, "", *textwrap.wrap(said, WIDTH, break_on_hyphens=False)])


def _heading(row: Counted) -> str:
    return f"{row.label}, {row.unit}" if row.unit else row.label


def _day(week: ShadowWeek, day: ShadowDay) -> tuple[str, ...]:
    counts = (day.node.evictions, day.node.kubelet, day.node.oom_kills, *evictions_of(day, week))
    return (day.day, *(_NONE if count is None else str(count) for count in counts))


def _head(week: ShadowWeek, node: NodeCounts) -> list[str]:
    mode = "dry run" if week.is_dry_run else f"enforcing, {pods(node.really)} really evicted"
    return [
        *filled(f"{week.node}, {days_said(week)}, {node.watched_s / 3600:.1f} h watched; {mode}"),
        *filled(
            f"acting configuration: {node.evictions} evictions, {node.above_s / 60:.1f} min above its threshold; "
            f"kubelet's hard threshold ({format_bytes(week.kubelet_hard_bytes)}) crossed {times(node.kubelet)}, "
            f"{node.oom_kills} kernel OOM kills"
        ),
    ]
