"""A simulation for people: the table, a plot of block bars, what cannot be known; and the week of shadow mode."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koordebpf.decision.what_if.week import DEFINITIONS, NodeCounts, ShadowDay, ShadowWeek
from koordebpf.errors import ConfigError
from koordebpf.report.pages.columns import WIDTH, filled, table_lines
from koordebpf.store.shadow import read_week
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
from koordebpf.tools.what_if.simulate import AS_RECORDED, GOOD_PERCENT, Simulated, SimulationResult, Validation
from koordebpf.units import GIB, NS_PER_S, format_bytes, format_ns

_NONE = "-"
_MINUTE_NS = 60 * NS_PER_S
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MOST_PLOTTED = 24  # rows
Figure = tuple[str, Callable[[Simulated], float | None], Callable[[float], str]]
MODEL = (
    "Model: an evicted pod's memory is taken out of later rounds until the recording shows the pod gone or evicted; a "
    "pod that the recording evicted and the simulation did not keeps its last known usage, for as long as pods that "
    "outlived it lived in the median. Stalls are those that the "
    "recording had at the same use of the node."
)
_SIMULATED = (
    "Cannot be known: what pods would have done after an eviction that did not happen, who would have used memory that "
    "was freed, and whether workloads would have been started again. `apart` is the share of time in which the "
    "simulated node is not the recorded one."
)
_WORDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "evictions": ("evictions", lambda value: f"{value:.3g}"),
    "freed_bytes": ("freed", lambda value: format_bytes(round(value))),
    "above_ns": ("above the threshold", lambda value: format_ns(round(value))),
    "stall_ns": ("stalls of LS pods", lambda value: format_ns(round(value))),
}


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


_FIGURES: Sequence[Figure] = (
    ("evictions", lambda each: each.outcome.evictions, lambda value: f"{value:.0f}"),
    ("GiB freed", lambda each: each.outcome.freed_bytes / GIB, lambda value: f"{value:.2f}"),
    ("minutes above", lambda each: each.outcome.above_ns / _MINUTE_NS, lambda value: f"{value:.2f}"),
    ("LS stall s", lambda each: _seconds(each.outcome.stall_ns), lambda value: f"{value:.2f}"),
)


def simulation_page(result: SimulationResult) -> str:
    """Return the whole page."""
    first, last = result.first, result.last
    recorded, passed_ns = result.recorded, result.recorded.passed_ns
    of = f"{recorded.rounds} rounds, {passed_ns / _MINUTE_NS:.1f} min of measurements, from {first} to {last}"
    lines = [*filled(of), "", *_table(result), "", *_plots(result.configurations), *_lines(MODEL), ""]
    lines += [*_lines(_SIMULATED), "", *(line for each in _doubts(result) for line in filled(each))]
    return "\n".join(lines).rstrip()


def validation_page(found: Validation) -> str:
    """Return how far a simulation is off."""
    lines = filled(f"{found.recording}, {found.minutes:.1f} min, simulated under the settings of {found.other}")
    for name, (here, there) in found.settings.items():
        lines += filled(f"{name}: {here} in the recording, {there} in the other one", "  ")
    if found.sections:
        lines += filled(f"of the agents' own settings these differ: {', '.join(found.sections)}", "  ")
    rows = [
        (
            _WORDS[each.figure][0],
            *(_WORDS[each.figure][1](value) for value in (each.simulated, each.happened)),
            _off(each),
        )
        for each in found.figures
    ]
    lines += ["", *table_lines(("", "simulated", "happened", "off by"), rows, 0), ""]
    if found.minutes and abs(found.other_minutes / found.minutes - 1) > 0.01:
        lines += filled(f"What happened in {found.other_minutes:.1f} min is scaled to {found.minutes:.1f} min.")
    verdict = "within" if found.is_good else "NOT within"
    lines += filled(
        f"Evictions are {verdict} ± {GOOD_PERCENT} % of what happened. {found.apart_percent:.0f} % of the time the "
        "simulated node was not the recorded one."
    )
    return "\n".join(lines)


def _off(each: Any) -> str:
    return "nothing happened" if each.off_percent is None else f"{each.off_percent:+.0f} %"


def _table(result: SimulationResult) -> list[str]:
    names = list(dict.fromkeys(name for each in result.configurations for name in each.settings))
    legend = filled(f"{' × '.join(names)}:") if names else []
    head = ("", *(name for name, _, _ in _FIGURES), "apart")
    rows = [_row(each, result.recorded.passed_ns) for each in result.configurations]
    recorded = result.recorded
    stall = _seconds(recorded.stall_ns)
    really = (
        "really happened",
        f"{recorded.evictions}",
        f"{recorded.freed_bytes / GIB:.2f}",
        f"{recorded.above_ns / _MINUTE_NS:.2f}",
        "-" if stall is None else f"{stall:.2f}",
        "",
    )
    return [*legend, *table_lines(head, [really, *rows], 0)]


def _row(each: Simulated, passed_ns: int) -> tuple[str, ...]:
    figures = [(of(each), form) for _, of, form in _FIGURES]
    cells = ["-" if value is None else form(value) for value, form in figures]
    return (_label(each), *cells, f"{100 * each.outcome.apart_ns / max(passed_ns, 1):.0f} %")


def _label(each: Simulated) -> str:
    return " × ".join(map(str, each.settings.values())) or AS_RECORDED


def _plots(configurations: Sequence[Simulated]) -> list[str]:
    swept = [each for each in configurations if each.settings and each.problem is None]
    if len(swept) < 2:
        return []
    if len(swept) > _MOST_PLOTTED:
        return [*filled(f"No plot: {len(swept)} configurations are more than {_MOST_PLOTTED}."), ""]
    if (grid := _grid(swept)) is not None:
        return grid
    lines = []
    for name, of, form in _FIGURES:
        values = [of(each) for each in swept]
        if any(value is None for value in values):
            continue
        known = [value or 0.0 for value in values]
        lines += [name, *_bars([_label(each) for each in swept], known, [form(value) for value in known]), ""]
    return lines


# Two settings with several values each: a table of each figure, the first setting's values below each other.
def _grid(swept: Sequence[Simulated]) -> list[str] | None:
    names = list(swept[0].settings)
    values = [list(dict.fromkeys(str(each.settings[name]) for each in swept)) for name in names]
    if len(names) != 2 or min(map(len, values)) < 2:
        return None
    at = {tuple(map(str, each.settings.values())): each for each in swept}
    lines = []
    for figure, of, form in _FIGURES:
        rows = []
        for first in values[0]:
            found = (at.get((first, second)) for second in values[1])
            numbers = (None if each is None else of(each) for each in found)
            rows.append((first, *("-" if number is None else form(number) for number in numbers)))
        lines += [f"{figure}, {names[0]} down, {names[1]} across", *table_lines(("", *values[1]), rows, 0), ""]
    return lines


def _bars(labels: Sequence[str], values: Sequence[float], shown: Sequence[str]) -> list[str]:
    left, right = max(map(len, labels)), max(map(len, shown))
    room = max(WIDTH - left - right - 5, 8)
    most = max(values) or 1.0
    return [
        f"  {label.rjust(left)} {_bar(value / most * room).ljust(room)} {text.rjust(right)}".rstrip()
        for label, value, text in zip(labels, values, shown, strict=True)
    ]


def _bar(cells: float) -> str:
    eighths = round(cells * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _doubts(result: SimulationResult) -> list[str]:
    recorded, found = result.recorded, []
    itself, happened = result.configurations[0].outcome.evictions, recorded.evictions
    if happened or not itself:
        off = "" if not happened else f", {100 * (itself - happened) / happened:+.0f} %"
        found.append(
            f"Under its own settings the simulation makes {itself} evictions, and {happened} really happened{off}; "
            "--validate compares other settings with a recording in which they were in force."
        )
    else:
        found.append(
            f"Nothing was evicted in this recording, as in a dry run: {itself} evictions are what enforcing would have "
            "done. A pod that was evicted again and again in the dry run counts once."
        )
    full_ns = max(each.outcome.full_ns for each in result.configurations)
    unseen_ns = max(each.outcome.unseen_ns for each in result.configurations)
    if full_ns:
        found.append(
            f"Under some of these settings more memory than there is would be used, for up to {format_ns(full_ns)}: "
            "the kernel would have killed something there."
        )
    if unseen_ns:
        found.append(
            f"For up to {format_ns(unseen_ns)} a node is at a use that was never recorded; its stalls are those at the "
            "nearest one that was."
        )
    if recorded.stalls_of_node:
        found.append("Stalls are those of any task of the node: those of pods were not timed.")
    if recorded.has_ladder:
        found.append("The ladder's milder rungs are not simulated: an eviction comes where the ladder would start.")
    if recorded.acts_ahead:
        found.append("eviction.actAhead is not simulated once a node is not as recorded: it has no forecast.")
    found += [f"{_label(each)}: {each.problem}" for each in result.configurations if each.problem]
    return found


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS_PER_S
