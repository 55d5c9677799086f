"""Plots on a page: what the script draws, the legend, and the table that says the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koordebpf.report.incident.amounts import ABSENT, amount, clock, moment
from koordebpf.report.incident.markup import Child, Column, Node, element, table
from koordebpf.report.incident.values import Chart, Mark, Series

_ROWS = 60  # of a table. Why: one a minute for an hour
_DAY_S = 86_400
_COLOURS = 10  # --c0 … --c9 of style.css
_KINDS = {"decision": "decision", "oom": "OOM kill", "back": "memory back", "gap": "rounds lost"}


def charts_json(charts: Sequence[Chart], marks: Sequence[Mark]) -> dict[str, Any]:
    """Return what the script reads. Of a stack it adds the areas up."""
    return {
        "charts": [
            {
                "id": chart.id,
                "title": chart.title,
                "unit": chart.unit,
                "times": chart.times_s,
                "series": [
                    {"name": each.name, "style": each.style, "color": color, "values": list(map(_short, each.values))}
                    for each, color in zip(chart.series, colours(chart), strict=True)
                ],
            }
            for chart in charts
        ],
        "marks": [{"at": each.at_s, "kind": each.kind} for each in marks],
    }


def _short(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


def colours(chart: Chart) -> list[str]:
    """Return the name of the colour of each series, as style.css has it."""
    found, number = [], 0
    for each in chart.series:
        if each.style == "mark":
            found.append("lower" if each.name.startswith("lower") else "threshold")
        elif each.style == "line" and chart.id == "memory":
            found.append("ink")
        elif each.style == "area" and each.name.endswith((" other pod", " other pods")):
            found.append("others")
        elif each.style == "area" and each.name == "outside of pods":
            found.append("outside")
        else:
            found.append(f"c{number % _COLOURS}")
            number += 1
    return found


def chart_section(chart: Chart, marks: Sequence[Mark]) -> Node:
    """Return one plot with its legend, and a table of the same numbers, which needs no script."""
    heading, note = f"{chart.id}-heading", f"{chart.id}-note"
    return element(
        "section",
        element("h2", chart.title, id=heading),
        element("p", chart.note, id=note, class_="note"),
        element("div", id=f"plot-{chart.id}", class_="plot", data_chart=chart.id, aria_describedby=note),
        _legend(chart, marks),
        element(
            "details",
            element("summary", f"{chart.title} as a table"),
            _table(chart),
        ),
        aria_labelledby=heading,
        id=chart.id,
    )


def _legend(chart: Chart, marks: Sequence[Mark]) -> Node:
    made = element("ul", class_="legend", aria_label=f"Legend of {chart.title}")
    for each, color in zip(chart.series, colours(chart), strict=True):
        swatch = element("span", class_=f"swatch {each.style} {color}", aria_hidden="true")
        made.append(element("li", swatch, element("span", each.name, class_="name"), element("span", class_="value")))
    for kind, name in _KINDS.items():
        if any(each.kind == kind for each in marks):
            swatch = element("span", class_=f"swatch at {kind}", aria_hidden="true")
            made.append(element("li", swatch, element("span", name, class_="name")))
    return made


def _table(chart: Chart) -> Node:
    places = sampled(len(chart.times_s))
    shown = f"{len(places)} of {len(chart.times_s)} moments" if len(places) < len(chart.times_s) else "every moment"
    columns = [Column("UTC"), *(Column(each.name, is_number=True) for each in chart.series)]
    rows: list[list[Child]] = [
        [_when(chart, place), *(_cell(each, place, chart) for each in chart.series)] for place in places
    ]
    return table(f"{chart.title}, {shown}", columns, rows)


# Counts are of whole days. Of several days the date, too, else the time.
def _when(chart: Chart, place: int) -> str:
    at_s = chart.times_s[place]
    if chart.unit == "count":
        return moment(at_s)[:10]
    return moment(at_s)[5:16] if chart.times_s[-1] - chart.times_s[0] >= _DAY_S else clock(at_s)


def _cell(series: Series, place: int, chart: Chart) -> str:
    value = series.values[place]
    return ABSENT if value is None else amount(value, chart.unit)


def sampled(count: int, most: int = _ROWS) -> list[int]:
    """Return so many places at most, evenly spread, the first and the last among them.

    >>> sampled(3), sampled(5, 3)
    ([0, 1, 2], [0, 2, 4])
    """
    if count <= most:
        return list(range(count))
    return [round(number * (count - 1) / (most - 1)) for number in range(most)]
