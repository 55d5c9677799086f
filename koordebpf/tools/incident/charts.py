"""Moments to plots: the largest pods by name, the others as one sum; the legend, and the table that says the same.

Pure.
"""

from __future__ import annotations

import base64
import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from koordebpf.printable import json_bytes, printable
from koordebpf.state.balance import UNEXPLAINED
from koordebpf.tools.incident.moments import Moment
from koordebpf.tools.incident.values import ABSENT, Chart, Mark, Series, amount, clock, moment
from koordebpf.units import NS_PER_S

Node = ET.Element
Child = ET.Element | str | None
_ROWS = 60  # of a table. Why: one a minute for an hour
_DAY_S = 86_400
_COLOURS = 10  # --c0 … --c9 of style.css
_KINDS = {"decision": "decision", "oom": "OOM kill", "back": "memory back", "gap": "rounds lost"}
OUTSIDE = "outside of pods"
NAMED = 10  # pods of a stack. Why: more colours than these cannot be distinguished
_LINES = 6  # pods of a plot of lines
_GAP_NS = 20 * NS_PER_S  # Why: the slowest pace is a round each 5 s
_GAP_OF_STEPS = 5
Value = float | None


# HTML as elements of the standard library's ElementTree, which escapes every text and attribute when it writes them.
#
# Names on a page are hostile: no part of it is put together from strings. The two elements that HTML does not escape,
# style and script, are made by functions of their own, which refuse what would end them.


def element(tag: str, *children: Child, **attributes: str | int | None) -> Node:
    """Return an element with these children; None is left out.

    A name of an attribute ends with _ where Python has the word, and has _ for -. Controls in texts are shown, as on a
    terminal.

    >>> ET.tostring(element("td", "<b>", class_="a"), encoding="unicode", method="html")
    '<td class="a">&lt;b&gt;</td>'
    """
    made = ET.Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), printable(str(value)))
    for child in children:
        if isinstance(child, str):
            _append_text(made, printable(child))
        elif child is not None:
            made.append(child)
    return made


def _append_text(parent: Node, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def style(text: str) -> Node:
    """Return an element with this text as it is.

    Raises:  ValueError: the text would end the element.
    """
    return _raw("style", text)


def script(text: str) -> Node:
    """Return an element that runs this text.

    Raises:  ValueError: the text would end the element.
    """
    return _raw("script", text)


def json_script(identity: str, value: Any) -> Node:
    r"""Return data for a script. In JSON the characters that could end the element, or start another, are escaped.

    >>> json_script("data", "</script>").text
    '"\\u003c/script\\u003e"'
    """
    raw = json_bytes(value).replace(b"<", rb"\u003c").replace(b">", rb"\u003e").replace(b"&", rb"\u0026")
    made = _raw("script", raw.decode())
    made.set("type", "application/json")
    made.set("id", identity)
    return made


def _raw(tag: str, text: str) -> Node:
    if f"</{tag}" in text.lower() or "<!--" in text:
        raise ValueError(f"the text would end <{tag}>")
    made = ET.Element(tag)
    made.text = text
    return made


def content_hash(text: str) -> str:
    """Return what a Content-Security-Policy allows this text of a style or script by."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def document(head: Node, body: Node) -> str:
    """Return a whole page."""
    root = element("html", head, body, lang="en")
    return f"<!DOCTYPE html>\n{ET.tostring(root, encoding='unicode', method='html')}\n"


class Column(msgspec.Struct, frozen=True):
    """A column's heading, and whether it has numbers, which stand right."""

    name: str
    is_number: bool = False


def table(
    caption: str, columns: list[Column], rows: list[list[Child]], *, row_classes: list[str] | None = None
) -> Node:
    """Return a table that scrolls by itself; the first cell of each row is its heading."""
    head = element("tr", *(element("th", each.name, scope="col", class_=_class(each)) for each in columns))
    body = element("tbody")
    for number, cells in enumerate(rows):
        row = element("tr", class_=(row_classes[number] or None) if row_classes else None)
        row.append(element("th", cells[0], scope="row", class_=_class(columns[0])))
        for column, cell in zip(columns[1:], cells[1:], strict=True):
            row.append(element("td", cell, class_=_class(column)))
        body.append(row)
    made = element("table", element("caption", caption), element("thead", head), body)
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _class(column: Column) -> str | None:
    return "n" if column.is_number else None


def facts(pairs: list[tuple[str, Child]]) -> Node:
    """Return names with what they are."""
    made = element("dl")
    for name, value in pairs:
        made.append(element("div", element("dt", name), element("dd", value)))
    return made


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
        elif each.style == "area" and each.name in (OUTSIDE, UNEXPLAINED):
            found.append("outside" if each.name == OUTSIDE else "unexplained")
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


def charts_of(moments: Sequence[Moment], names: Mapping[str, str], victims: Iterable[str]) -> tuple[Chart, ...]:
    """Return the plots that have anything to show.

    Args:
        moments: the oldest first.
        names: of pods by UID, as namespace/name.
        victims: UIDs of pods that have a name in the stack, however small they are.
    """
    points = with_gaps(moments)
    times = tuple(round(at_ns / NS_PER_S, 3) for at_ns, _ in points)
    rows = [each for _, each in points]
    made = (
        _memory(rows, times, names, victims),
        _stalls(rows, times, names),
        _growth(rows, times, names),
        _suppression(rows, times),
    )
    return tuple(each for each in made if each is not None)


def with_gaps(moments: Sequence[Moment]) -> list[tuple[int, Moment | None]]:
    """Return moments with their times, and a None where none was recorded for long, so that no line is drawn there."""
    steps = sorted(after.wall_ns - before.wall_ns for before, after in pairwise(moments))
    gap_ns = max(_GAP_NS, _GAP_OF_STEPS * steps[len(steps) // 2]) if steps else _GAP_NS
    points: list[tuple[int, Moment | None]] = []
    for each in moments:
        if points and each.wall_ns - points[-1][0] > gap_ns:
            points.append(((points[-1][0] + each.wall_ns) // 2, None))
        points.append((each.wall_ns, each))
    return points


def _values(rows: Sequence[Moment | None], of: Callable[[Moment], Value]) -> tuple[Value, ...]:
    return tuple(None if each is None else of(each) for each in rows)


# Nothing is noted of a pod that does not stall or grow; of one that was not there nothing is known.
def _of_pod(rows: Sequence[Moment | None], uid: str, of: Callable[[Moment], Mapping[str, float]]) -> tuple[Value, ...]:
    return _values(rows, lambda each: of(each).get(uid, 0.0) if uid in each.held_bytes else None)


def _memory(
    rows: Sequence[Moment | None], times: tuple[float, ...], names: Mapping[str, str], victims: Iterable[str]
) -> Chart | None:
    known = [each for each in rows if each is not None]
    if not any(each.used_bytes is not None or each.held_bytes for each in known):
        return None
    largest = _largest(known, lambda each: each.held_bytes)
    kept = set([uid for uid in dict.fromkeys(victims) if uid in largest][: NAMED // 2])
    kept.update([uid for uid in largest if uid not in kept][: NAMED - len(kept)])
    series = [
        Series(name_of(uid, names), "area", _of_pod(rows, uid, lambda each: each.held_bytes))
        for uid in largest
        if uid in kept
    ]
    if others := len(largest) - len(kept):
        series.append(
            Series(
                "1 other pod" if others == 1 else f"{others} other pods",
                "area",
                _values(rows, lambda each: sum(held for uid, held in each.held_bytes.items() if uid not in kept)),
            )
        )
    series.append(Series(OUTSIDE, "area", _values(rows, _outside)))
    if any(each.unexplained_bytes is not None for each in known):
        series.append(Series(UNEXPLAINED, "area", _values(rows, lambda each: each.unexplained_bytes)))
    series.append(Series("node, in use", "line", _values(rows, lambda each: each.used_bytes)))
    series += _marks(rows)
    note = (
        "Memory that each pod would release: its processes', what cannot be reclaimed, and the kernel's for it;"
        " page cache is left out. Of each stretch of time the moment with the most in use."
    )
    return Chart("memory", "Memory by pod", "bytes", times, tuple(series), note)


def _outside(each: Moment) -> Value:
    if each.used_bytes is None:
        return None
    return max(0, each.used_bytes - sum(each.held_bytes.values()) - (each.unexplained_bytes or 0))


def _marks(rows: Sequence[Moment | None]) -> list[Series]:
    made = [
        Series("threshold", "mark", _values(rows, lambda each: each.threshold_bytes)),
        Series("lower mark", "mark", _values(rows, lambda each: each.lower_bytes)),
    ]
    return [each for each in made if _has_any(each)]


def _stalls(rows: Sequence[Moment | None], times: tuple[float, ...], names: Mapping[str, str]) -> Chart | None:
    of_node = [
        Series("node, some task stalls", "line", _values(rows, lambda each: _percent(each.some_ratio))),
        Series("node, every task stalls", "line", _values(rows, lambda each: _percent(each.full_ratio))),
    ]
    shown = _with_pods(of_node, rows, names, lambda each: each.stalls, _percent)
    note = (
        "Share of the time in which tasks wait for memory; of pods the sum of their timed waits, at most 100 %. Of each"
        " stretch of time the largest."
    )
    return Chart("stalls", "Stalls", "%", times, shown, note) if shown else None


def _growth(rows: Sequence[Moment | None], times: tuple[float, ...], names: Mapping[str, str]) -> Chart | None:
    of_node = [Series("node", "line", _values(rows, lambda each: _whole(each.growth_bytes_per_s)))]
    shown = _with_pods(of_node, rows, names, lambda each: each.growths, _whole)
    note = (
        "How fast memory in use grows: of the node, and of the pods that grew fastest. Below zero it shrinks;"
        " where that is faster than anything grew it is cut off."
    )
    return Chart("growth", "Growth", "bytes/s", times, shown, note) if shown else None


# Lines of the node, and of the pods whose peaks are highest; those that have a value.
def _with_pods(
    of_node: Sequence[Series],
    rows: Sequence[Moment | None],
    names: Mapping[str, str],
    of: Callable[[Moment], Mapping[str, float]],
    shown_as: Callable[[Value], Value],
) -> tuple[Series, ...]:
    largest = _largest([each for each in rows if each is not None], of)[:_LINES]
    of_pods = [Series(name_of(uid, names), "line", tuple(map(shown_as, _of_pod(rows, uid, of)))) for uid in largest]
    return tuple(each for each in (*of_node, *of_pods) if _has_any(each))


def _suppression(rows: Sequence[Moment | None], times: tuple[float, ...]) -> Chart | None:
    series = (
        Series("best-effort pods may have", "mark", _values(rows, lambda each: _cpus(each.be_may_have_millicpu))),
        Series("limited to", "line", _values(rows, lambda each: _cpus(each.be_limited_millicpu))),
        Series("used by best-effort pods", "line", _values(rows, lambda each: _cpus(each.be_used_millicpu))),
    )
    shown = tuple(each for each in series if _has_any(each))
    note = (
        "CPUs that the others leave best-effort pods, what they are limited to, by CPUs or a quota, and what they"
        " use. Below zero the others use more than the threshold allows."
    )
    return Chart("suppression", "CPU suppression", "CPUs", times, shown, note) if shown else None


# By the peak, the largest first.
def _largest(rows: Iterable[Moment], of: Callable[[Moment], Mapping[str, float]]) -> list[str]:
    peaks: dict[str, float] = {}
    for each in rows:
        for uid, value in of(each).items():
            if value > peaks.get(uid, 0.0):
                peaks[uid] = value
    return sorted(peaks, key=lambda uid: (-peaks[uid], uid))


def name_of(uid: str, names: Mapping[str, str]) -> str:
    """Return a pod's name; of one that no source knows its UID."""
    return names.get(uid) or f"pod {uid}"


def _has_any(series: Series) -> bool:
    return any(value is not None for value in series.values)


def _percent(ratio: float | None) -> Value:
    return None if ratio is None else round(100 * ratio, 2)


def _whole(value: float | None) -> Value:
    return None if value is None else round(value)


def _cpus(millicpu: int | None) -> Value:
    return None if millicpu is None else millicpu / 1000
