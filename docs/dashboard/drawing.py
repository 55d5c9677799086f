"""Panels with their values to a picture 1280 pixels wide, by matplotlib: placed as Grafana places them, drawn by us."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot
from PIL import Image

_WIDTH_PX, _UNIT_PX = 1280, 22
_WIDTH = 24  # of Grafana's grid
_MOST = {"Until a mark is reached": 120, "Pods that are full soon": 120}  # what is hours away hides the rest
_COLORS = {"green": "#73bf69", "red": "#f2495c", "orange": "#ff9830", "blue": "#5794f2", "text": "#ccccdc"}
_LEGENDS = 8
_STYLE = {"font.size": 7, "axes.titlesize": 8, "legend.fontsize": 6.5, "axes.grid": True, "grid.alpha": 0.15}
_NAMES = 0.14
_PALETTE = 128  # colours of the file


def draw_page(panels: list[dict[str, Any]], step_s: int, path: Path) -> None:
    """Draw the rows that are open, and of the closed ones the panels that have something to show."""
    panels = [panel for panel in panels if panel["series"] or not panel["is_closed"]]
    rows = list(dict.fromkeys(panel["row"] for panel in panels))
    heads, height = _pack(panels, rows)
    pyplot.style.use("dark_background")
    pyplot.rcParams.update(_STYLE)
    figure = pyplot.figure(figsize=(_WIDTH_PX / 100, height * _UNIT_PX / 100), dpi=100, facecolor="#111217")
    for row, y in heads.items():
        figure.text(0.008, 1 - (y + 0.75) / height, row, fontsize=9, weight="bold", color="#ccccdc")
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / _WIDTH, place["w"] / _WIDTH
        bottom, tall = 1 - (place["y"] + place["h"]) / height, place["h"] / height
        unit = 1 / height
        kind = _KINDS.get(panel["type"], _lines)
        below = 1.9 * unit if kind is _lines else 0.4 * unit
        axes = figure.add_axes((left + 0.05, bottom + below, width - 0.062, tall - below - 1.1 * unit))
        axes.set_title(panel["title"], loc="left", color="#ccccdc")
        axes.set_facecolor("#181b1f")
        kind(axes, panel, step_s)
    figure.savefig(path, facecolor=figure.get_facecolor(), metadata={"Software": None})
    pyplot.close(figure)
    with Image.open(path) as made:
        made.convert("RGB").quantize(_PALETTE).save(path, optimize=True)


# Rows that are left out leave no gap. Return where each row's head is, and the height of all.
def _pack(panels: list[dict[str, Any]], rows: list[str]) -> tuple[dict[str, int], int]:
    heads, top = {}, 0
    for row in rows:
        places = [panel["gridPos"] for panel in panels if panel["row"] == row]
        if any(panel["is_closed"] for panel in panels if panel["row"] == row):
            for number, place in enumerate(places):  # two beside each other
                place["x"], place["y"] = number % 2 * place["w"], number // 2 * place["h"]
        least = min(place["y"] for place in places)
        heads[row] = top
        for place in places:
            place["y"] += top + 1 - least
        top = max(place["y"] + place["h"] for place in places)
    return heads, top


def _unit(panel: dict[str, Any]) -> str:
    unit: str = panel["fieldConfig"]["defaults"].get("unit", "short")
    return unit


def _stat(axes: Any, panel: dict[str, Any], _step_s: int) -> None:
    axes.axis("off")
    values = [value for each in panel["series"][:1] for value in each["values"] if value is not None]
    if not values:
        axes.text(0, 0.4, "no data", fontsize=13, color="gray", transform=axes.transAxes)
        return
    text, color = _said(values[-1], panel["fieldConfig"]["defaults"])
    axes.text(0, 0.35, text, fontsize=16, color=color, transform=axes.transAxes)


# A value as Grafana writes it, in the colour of its word or of the threshold that it has passed.
def _said(value: float, field: dict[str, Any]) -> tuple[str, str]:
    for mapping in field.get("mappings", ()):
        if word := mapping["options"].get(f"{value:g}"):
            return word["text"], _COLORS[word["color"]]
    color = "green"
    for step in field.get("thresholds", {}).get("steps", ()):
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return _written(value, field.get("unit", "short")), _COLORS[color]


def _lines(axes: Any, panel: dict[str, Any], step_s: int) -> None:
    count = max((len(each["values"]) for each in panel["series"]), default=2)
    axes.set_xlim(0, (count - 1) * step_s)
    axes.yaxis.set_major_formatter(lambda value, _: _written(value, _unit(panel)))
    if not panel["series"]:
        axes.text(0.5, 0.5, "no data", ha="center", color="gray", transform=axes.transAxes)
        axes.set_yticks([])
        return
    for each in panel["series"]:
        values = [float("nan") if value is None else value for value in each["values"]]
        at = [number * step_s for number in range(len(values))]
        axes.plot(at, values, linewidth=1, label=each["name"], **_dashes(each["name"], panel))
    _marks(axes, panel)
    least = panel["fieldConfig"]["defaults"].get("min", min(0, axes.get_ylim()[0]))
    axes.set_ylim(bottom=least, top=_MOST.get(panel["title"]))
    axes.tick_params(labelsize=6)
    handles, labels = axes.get_legend_handles_labels()
    shown = handles[:_LEGENDS], labels[:_LEGENDS]
    axes.legend(*shown, loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncols=4, frameon=False, handlelength=1.2,
                columnspacing=1, labelspacing=0.15)  # fmt: skip


def _dashes(name: str, panel: dict[str, Any]) -> dict[str, Any]:
    for override in panel["fieldConfig"]["overrides"]:
        if re.search(override["matcher"]["options"].strip("/"), name):
            properties = {each["id"]: each["value"] for each in override["properties"]}
            return {"linestyle": "--", "color": _COLORS[properties["color"]["fixedColor"]]}
    return {}


# Thresholds that are near what is shown are lines, as Grafana draws them.
def _marks(axes: Any, panel: dict[str, Any]) -> None:
    most = axes.get_ylim()[1]
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ()):
        if step["value"] is not None and step["value"] <= most:
            axes.axhline(step["value"], color=_COLORS[step["color"]], linestyle="--", linewidth=0.8)


def _heat(axes: Any, panel: dict[str, Any], step_s: int) -> None:
    series = [each for each in panel["series"] if any(each["values"])]
    cells = [[value or 0.0 for value in each["values"]] for each in series]
    if not cells:
        axes.text(0.5, 0.5, "no data", ha="center", color="gray", transform=axes.transAxes)
        axes.set_yticks([])
        return
    left, bottom, width, tall = axes.get_position().bounds
    axes.set_position((left + _NAMES, bottom, width - _NAMES, tall))  # room for the names
    extent = (0, len(cells[0]) * step_s, len(cells) - 0.5, -0.5)
    axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="inferno", extent=extent)
    axes.set_yticks(range(len(series)), [each["name"] for each in series], fontsize=6)
    axes.grid(visible=False)


def _table(axes: Any, panel: dict[str, Any], step_s: int) -> None:
    axes.axis("off")
    if any("victim" in each["labels"] for each in panel["series"]):
        _matrix(axes, panel)
        return
    columns = panel["columns"]
    looks = [_looks(name, panel) for name in columns]
    rows: dict[str, list[tuple[str, str]]] = {}
    for each in panel["series"]:
        if (value := each["values"][0]) is not None:
            row = rows.setdefault(each["labels"]["node"], [("", "white")] * len(columns))
            row[each["target"]] = _said(value, looks[each["target"]])
    if not rows:
        axes.text(0.5, 0.5, "no data", ha="center", color="gray", transform=axes.transAxes)
        return
    step = 1 / (len(columns) + 1)
    for at, name in enumerate(("Node", *columns)):
        axes.text(at * step - 0.02, 0.93, _wrapped(name), fontsize=6.5, color="gray", va="center")
    for number, (node, cells) in enumerate(sorted(rows.items())):
        y = 0.78 - number * 0.12
        axes.text(-0.02, y, node, fontsize=8, color=_COLORS["blue"])
        for at, (text, color) in enumerate(cells, start=1):
            axes.text(at * step - 0.02, y, text, fontsize=8, color=color)


def _wrapped(text: str) -> str:
    return text if len(text) < 14 else re.sub(r" (?=\S{2,}\s*\S*$)", "\n", text, count=1)


def _looks(column: str, panel: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"] == column]
    return {each["id"]: each["value"] for each in found["properties"]}


def _matrix(axes: Any, panel: dict[str, Any]) -> None:
    cells = {(each["labels"]["victim"], each["labels"]["cause"]): each["values"][0] for each in panel["series"]}
    victims, causes = (sorted({pair[place] for pair in cells}) for place in (0, 1))
    most = max(cells.values())
    wide, tall = 1 / (len(causes) + 1), 1 / (len(victims) + 1)
    shades = mpl.colormaps["YlOrRd"]
    for column, cause in enumerate(causes, start=1):
        axes.text((column + 0.5) * wide, 1 - tall / 2, cause, fontsize=6.5, ha="center", color="gray")
    for row, victim in enumerate(victims, start=1):
        axes.text(-0.02, 1 - (row + 0.5) * tall, victim, fontsize=7, va="center")
        for column, cause in enumerate(causes, start=1):
            if (value := cells.get((victim, cause))) is not None:
                place = (column * wide, 1 - (row + 1) * tall)
                share = (value / most) ** 0.5
                axes.add_patch(pyplot.Rectangle(place, wide * 0.97, tall * 0.94, color=shades(share)))
                axes.text(place[0] + wide / 2, place[1] + tall / 2, _written(value, _unit(panel)), fontsize=7,
                          ha="center", va="center", color="black" if share < 0.6 else "white")  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _written(value: float, unit: str) -> str:
    if unit in ("bytes", "Bps"):
        return f"{value / 2**20:.4g} MiB"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.4g}" + {"s": " s", "ms": " ms"}.get(unit, "")


_KINDS = {"stat": _stat, "heatmap": _heat, "table": _table}
