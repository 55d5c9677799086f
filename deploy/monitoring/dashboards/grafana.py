"""Panels and rows to the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

FLEET, NODE = "koordebpf", "koordebpf-node"  # the uids of both pages: links and bookmarks hold them
RATE = "[$__rate_interval]"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
HEIGHT = 8
BAD = ((None, "green"), (1, "red"))  # of what is to be 0
# A link keeps the data source and the time.
_KEPT = "${datasource:queryparam}&${__url_time_range}"
TO_FLEET = {"title": "All nodes", "url": f"/d/{FLEET}?{_KEPT}"}

Thresholds = tuple[tuple[float | None, str], ...]
_CALM: Thresholds = ((None, "green"),)  # Grafana's own has red from 80 on
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Panel(NamedTuple):
    """One panel: queries and their legends; `unit` is Grafana's. `more` is laid over what is made of the others."""

    title: str
    text: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = HEIGHT
    thresholds: Thresholds = ()
    links: tuple[dict[str, str], ...] = ()
    is_now: bool = False  # of the end of the time only, as a table
    defaults: Mapping[str, Any] = _NOTHING
    overrides: tuple[dict[str, Any], ...] = ()
    more: Mapping[str, Any] = _NOTHING


class Row(NamedTuple):
    """A row's title and its panels; a closed one asks for nothing until it is opened."""

    title: str
    panels: tuple[Panel, ...]
    is_closed: bool = False


class Column(NamedTuple):
    """A column of a table with a row for each node: its query has one value for each."""

    title: str
    query: str
    unit: str = "short"
    thresholds: Thresholds = ()
    defaults: Mapping[str, Any] = _NOTHING


def stat(title: str, text: str, query: str, unit: str = "short", thresholds: Thresholds = _CALM, **more: Any) -> Panel:
    """Return a panel of one figure."""
    return Panel(title, text, ((query, title),), unit, "stat", 4, 4, thresholds, **more)


def words(*said: tuple[int, str, str]) -> dict[str, Any]:
    """Return words in place of values, each with its colour."""
    options = {str(value): {"text": text, "color": color, "index": value} for value, text, color in said}
    return {"mappings": [{"type": "value", "options": options}]}


def to_node(name: str) -> dict[str, str]:
    """Return a link to a node's page, by what Grafana calls its name: `__field.labels.node`."""
    return {"title": "This node", "url": f"/d/{NODE}?var-node=${{{name}}}&{_KEPT}"}


def dashed(*said: tuple[str, str]) -> tuple[dict[str, Any], ...]:
    """Return overrides that draw series whose name has a word as dashed lines of a colour."""
    return tuple(
        {
            "matcher": {"id": "byRegexp", "options": f"/{word}/"},
            "properties": [
                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 6]}},
                {"id": "color", "value": {"mode": "fixed", "fixedColor": color}},
            ],
        }
        for word, color in said
    )


def heat(title: str, text: str, query: str, legend: str, unit: str) -> Panel:
    """Return a panel with a row of coloured cells for each series."""
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "scale": "exponential", "exponent": 0.5},
        "cellGap": 1,
        "cellValues": {"unit": unit},
        "yAxis": {"axisPlacement": "left"},
        "tooltip": {"mode": "single", "yHistogram": False},
        "legend": {"show": True},
    }
    return Panel(title, text, ((query, legend),), unit, "heatmap", WIDTH, 12, more={"options": options})


def matrix(title: str, text: str, query: str, unit: str, row: str, column: str) -> Panel:
    """Return a table with a cell for each pair of two labels, the darker the larger."""
    made = [
        {"id": "groupingToMatrix", "options": {"rowField": row, "columnField": column, "valueField": "Value"}},
    ]
    shaded = {"custom": {"cellOptions": {"type": "color-background", "mode": "gradient"}}}
    scale = {"color": {"mode": "continuous-YlRd"}, "min": 0}
    more = {"transformations": made, "options": {"showHeader": True, "cellHeight": "sm"}}
    defaults = shaded | scale
    return Panel(title, text, ((query, ""),), unit, "table", WIDTH, is_now=True, defaults=defaults, more=more)


def of_nodes(title: str, text: str, columns: tuple[Column, ...], worst: str) -> Panel:
    """Return a table with a row for each node, which leads to its page; the largest of a column first."""
    names = [chr(ord("A") + number) for number in range(len(columns))]
    renamed = {f"Value #{name}": column.title for name, column in zip(names, columns, strict=True)}
    made = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": renamed | {"node": "Node"}}},
    ]
    overrides = [_override("Node", {"links": [to_node("__value.text")], "custom.filterable": True})]
    overrides += [_override(each.title, _looks(each)) for each in columns]
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": worst, "desc": True}]}
    queries = tuple((each.query, each.title) for each in columns)
    more = {"transformations": made, "options": options}
    return Panel(
        title, text, queries, kind="table", width=WIDTH, height=10, is_now=True, overrides=tuple(overrides), more=more
    )


def _looks(column: Column) -> dict[str, Any]:
    looks: dict[str, Any] = {"unit": column.unit, **column.defaults}
    if column.thresholds:
        looks["thresholds"] = _steps(column.thresholds)
    if column.thresholds or column.defaults:
        looks["custom.cellOptions"] = {"type": "color-text"}
    return looks


def _override(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    made = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": made}


def _steps(thresholds: Thresholds) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in thresholds]}


def placed(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """Return all panels with their numbers and places, from the top to the bottom."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        inner, height = _in_row(row.panels, y + 1)
        panels.append(
            {
                "type": "row",
                "title": row.title,
                "collapsed": row.is_closed,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": inner if row.is_closed else [],
            }
        )
        panels += [] if row.is_closed else inner
        y += 1 + (0 if row.is_closed else height)
    every = [panel for each in panels for panel in (each, *each.get("panels", ()))]
    for number, panel in enumerate(every, start=1):
        panel["id"] = number
    return panels


def _in_row(panels: tuple[Panel, ...], y: int) -> tuple[list[dict[str, Any]], int]:
    made: list[dict[str, Any]] = []
    x, top, height = 0, y, 0
    for panel in panels:
        if x + panel.width > WIDTH:
            x, top, height = 0, top + height, 0
        made.append(_panel(panel, {"x": x, "y": top, "w": panel.width, "h": panel.height}))
        x, height = x + panel.width, max(height, panel.height)
    return made, top + height - y


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, **panel.defaults}
    if panel.thresholds:
        defaults["thresholds"] = _steps(panel.thresholds)
        if panel.kind == "timeseries":
            defaults["custom"] = {"thresholdsStyle": {"mode": "dashed"}}
    if panel.links:
        defaults["links"] = list(panel.links)
    now = {"instant": True, "range": False, "format": "table"} if panel.is_now else {}
    targets = [
        {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend, **now}
        for number, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": list(panel.overrides)},
        "targets": targets,
        **panel.more,
    }


def page(uid: str, title: str, rows: tuple[Row, ...], variables: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["kubernetes", "koordebpf"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_DATA_SOURCE, *variables]},
        "panels": placed(rows),
        **more,
    }


_DATA_SOURCE = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def nodes(*, is_one: bool) -> dict[str, Any]:
    """Return the variable `node`: one of them, or some, at first all."""
    made: dict[str, Any] = {
        "name": "node",
        "type": "query",
        "label": "Node",
        "datasource": SOURCE,
        "query": 'label_values(koordebpf_dry_run{job="koordebpf"}, node)',
        "includeAll": not is_one,
        "multi": not is_one,
        "refresh": 2,
        "sort": 1,
    }
    if is_one:
        return made
    return made | {"allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def evicted(done: str) -> dict[str, Any]:
    """Return a mark in every panel at each eviction."""
    return {
        "name": "Evictions",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"sum by (node, reason) (increase({done}[1m])) > 0",
        "titleFormat": "{{node}}: {{reason}}",
        "step": "1m",
    }
