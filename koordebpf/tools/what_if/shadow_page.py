"""What shadow configurations came to, for people: one page for a week."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from koordebpf.errors import ConfigError
from koordebpf.policy.what_if.week import DEFINITIONS, Lead, NodeCounts, ShadowCounts, ShadowWeek
from koordebpf.report.pages.columns import WIDTH, filled, table_lines
from koordebpf.store.shadow.kept_week import read_week
from koordebpf.units import GIB, format_bytes

_UNKNOWN = (
    "Cannot be known: what the node would have done after an eviction that did not happen. A shadow configuration's "
    "node is the real one without the pods that it evicted, until they really are gone, and with pods that really were "
    "evicted and that it kept, with their last known usage, for ten minutes at most. kubelet counts active page cache "
    "as used: of a machine its threshold may be crossed earlier than is said here."
)
_DRY_RUN = (
    "In a dry run nothing relieves the acting configuration's node, so that it names more pods, and earlier: what it "
    "would do is that of a configuration without settings."
)
_ROWS: tuple[tuple[str, Callable[[ShadowCounts], str]], ...] = (
    ("evictions", lambda each: str(each.evictions)),
    ("GiB freed", lambda each: f"{each.freed_bytes / GIB:.1f}"),
    ("same as acting", lambda each: str(each.same)),
    ("avoided", lambda each: str(each.avoided)),
    ("needless", lambda each: str(each.needless)),
    ("in time", lambda each: str(each.in_time)),
    ("too late", lambda each: str(each.too_late)),
    ("minutes above", lambda each: f"{each.above_s / 60:.1f}"),
    ("lead over acting, s", lambda each: _lead(each.over_acting)),
    ("lead over kubelet, s", lambda each: _lead(each.over_kubelet)),
    ("lead over OOM kills, s", lambda each: _lead(each.over_oom)),
)


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
        lines += filled(_answer(name, week.total(name), node))
    rows = [(label, *(form(week.total(name)) for name in names)) for label, form in _ROWS]
    watched_s = max(node.watched_s, 1e-9)
    rows.append(("not the real node", *(f"{100 * week.total(name).apart_s / watched_s:.0f} %" for name in names)))
    lines += ["", *table_lines(("", *names), rows, 0), ""]
    if len(week.days) > 1:
        lines += [*table_lines(_DAY_HEAD + tuple(names), [_day(week, place) for place in range(len(week.days))], 0), ""]
    for name in names:
        said = (
            ", ".join(f"{key}={value}" for key, value in week.settings[name].items()) or "as the acting one, enforced"
        )
        lines += filled(f"{name}: {said}")
        if problem := week.problems.get(name):
            lines += filled(f"{name} has no memory threshold in force: {problem}", "  ")
    if definitions:
        lines += ["", *(line for word, text in DEFINITIONS.items() for line in filled(f"{_said(word)}: {text}"))]
    said = f"{_UNKNOWN} {_DRY_RUN}" if week.is_dry_run else _UNKNOWN
    return "\n".join([*lines, "", *textwrap.wrap(said, WIDTH, break_on_hyphens=False)])


_DAY_HEAD = ("evictions by day", "acting", "kubelet", "OOM kills")


def _day(week: ShadowWeek, place: int) -> tuple[str, ...]:
    day = week.days[place]
    counts = (day.shadows.get(name, ShadowCounts()).evictions for name in week.settings)
    node = day.node
    return (day.day, str(node.evictions), str(node.kubelet), str(node.oom_kills), *map(str, counts))


def _head(week: ShadowWeek, node: NodeCounts) -> list[str]:
    span = f"{week.days[0].day} to {week.days[-1].day}" if week.days else "no day yet"
    mode = "dry run" if week.is_dry_run else f"enforcing, {_pods(node.really)} really evicted"
    return [
        *filled(f"{week.node}, {span}, {node.watched_s / 3600:.1f} h watched; {mode}"),
        *filled(
            f"acting configuration: {node.evictions} evictions, {node.above_s / 60:.1f} min above its threshold; "
            f"kubelet's hard threshold ({format_bytes(week.kubelet_hard_bytes)}) crossed {_times(node.kubelet)}, "
            f"{node.oom_kills} kernel OOM kills"
        ),
    ]


def _answer(name: str, counts: ShadowCounts, node: NodeCounts) -> str:
    events = node.kubelet + node.oom_kills
    sentence = (
        f"{name} would have evicted {_pods(counts.evictions)}, {format_bytes(counts.freed_bytes)}: "
        f"{counts.needless} needlessly, and in time for {counts.in_time} of {events} crossings and OOM kills"
    )
    lead = counts.over_kubelet.with_all(counts.over_oom)
    return f"{sentence}, {lead.mean_s:.1f} s before them on average." if lead.mean_s is not None else f"{sentence}."


def _lead(lead: Lead) -> str:
    if lead.mean_s is None:
        return "-"
    return f"{lead.mean_s:.1f}" if lead.count == 1 else f"{lead.mean_s:.1f} ({lead.least_s:.1f}…{lead.most_s:.1f})"


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _said(word: str) -> str:
    return {"same": "same as acting", "oom_kills": "OOM kills"}.get(word, word.replace("_", " "))
