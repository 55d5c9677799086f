"""`Incident` to one HTML file that needs no network: styles, script, the plotting library and data are in it.

Its Content-Security-Policy allows nothing to be loaded, and no style and no script but these, by their hashes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from koordebpf import __version__
from koordebpf.tools.incident.charts import (
    Child,
    Column,
    Node,
    chart_section,
    charts_json,
    content_hash,
    document,
    element,
    facts,
    json_script,
    script,
    style,
    table,
)
from koordebpf.tools.incident.values import (
    ABSENT,
    DecisionShown,
    Fact,
    FeatureRanking,
    Happened,
    HeatMap,
    Incident,
    RankedPod,
    Returned,
    clock,
    moment,
    size,
    span,
)
from koordebpf.units import format_ns

_SHADES = 9  # .h1 … .h9 of style.css
_OPEN_ROWS = 20  # rankings up to this long are open
_ASSETS = Path(__file__).parent / "assets"


def section(identity: str, title: str, *children: Child) -> Node:
    """Return a part of the page with its heading."""
    heading = f"{identity}-heading"
    return element("section", element("h2", title, id=heading), *children, id=identity, aria_labelledby=heading)


def timeline_section(lines: Sequence[Happened]) -> Node:
    """Return what happened, by time."""
    if not lines:
        return section("timeline", "What happened", element("p", "Nothing was noted in this time."))
    columns = [Column("UTC"), Column("What"), Column("Said")]
    rows: list[list[Child]] = [[clock(line.at_s), line.kind, line.text] for line in lines]
    return section("timeline", "What happened", table("What happened, by time", columns, rows))


def heat_section(heat: HeatMap | None) -> Node | None:
    """Return who made whom stall: a table whose cells are shaded by how long."""
    if heat is None:
        return None
    if not heat.victims:
        return section("heat", "Who made whom stall", element("p", f"No pod stalled, by {heat.covers}."))
    most = max((ns for row in heat.ns for ns in row), default=0)
    head = element("tr", element("th", "stalled ↓, caused by →", scope="col"))
    for cause in heat.causes:
        head.append(element("th", element("span", cause), scope="col", class_="cause"))
    body = element("tbody")
    for victim, cells in zip(heat.victims, heat.ns, strict=True):
        row = element("tr", element("th", victim, scope="row"))
        for ns in cells:
            row.append(element("td", format_ns(ns) if ns else ABSENT, class_=f"n h{shade(ns, most)}"))
        body.append(row)
    caption = f"Time that each pod waited for memory, and the pod it is charged to; summed over {heat.covers}"
    made = element("table", element("caption", caption), element("thead", head), body, class_="heat")
    scroll = element("div", made, class_="scroll", tabindex=0, role="region", aria_label="Map of stalls")
    return section("heat", "Who made whom stall", scroll)


def shade(ns: int, most: int) -> int:
    """Return 0 for nothing, else 1 to 9 by the square root of its share of the most: small ones are seen, too.

    >>> shade(0, 100), shade(1, 100), shade(25, 100), shade(100, 100)
    (0, 1, 5, 9)
    """
    if ns <= 0 or most <= 0:
        return 0
    return max(1, min(_SHADES, round(math.sqrt(ns / most) * _SHADES)))


def decisions_section(decisions: Sequence[DecisionShown]) -> Node:
    """Return each decision with what became of it, and a reason for every pod."""
    if not decisions:
        return section("decisions", "Decisions", element("p", "No pod was to be evicted in this time."))
    return section("decisions", "Decisions", *(_decision(each, n) for n, each in enumerate(decisions, start=1)))


def _decision(each: DecisionShown, number: int) -> Node:
    again = f", {repeated(each.times)} until {clock(each.last_s)}" if each.times > 1 else ""
    dry = element("strong", "Dry run: nothing was evicted. ") if each.is_dry_run else None
    outcomes = element("ul", *(element("li", text) for text in each.outcomes)) if each.outcomes else None
    return element(
        "article",
        element("h3", f"{number}. {moment(each.at_s)}{again}"),
        element("p", dry, _sentence(each.sentence)),
        outcomes,
        element("p", _sentence(each.latencies), class_="note") if each.latencies else None,
        *(_ranking(ranking, number) for ranking in each.rankings),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def repeated(times: int) -> str:
    """Return how often a decision was made again.

    >>> repeated(2), repeated(5)
    ('repeated once', 'repeated 4 times')
    """
    return "repeated once" if times == 2 else f"repeated {times - 1} times"


def _ranking(ranking: FeatureRanking, number: int) -> Node:
    more = f" and {ranking.left_out} more" if ranking.left_out else ""
    rows = [_row(each) for each in ranking.rows]
    columns = [
        Column("Pod"),
        *(
            Column(name, is_number=True)
            for name in ("Rank", "Priority", "In use", "Would release", "Growth/s", "Caused")
        ),
        Column("Why"),
    ]
    count = len(ranking.rows)
    pods = "1 pod" if count == 1 else f"{count} pods"
    classes = ["victim" if each.is_victim else "" for each in ranking.rows]
    summary = element("summary", f"{ranking.feature}: ranking of {pods}{more}")
    caption = f"Ranking of {ranking.feature} at decision {number}; chosen pods first"
    return element(
        "details",
        summary,
        element("p", f"{ranking.reason}."),
        table(caption, columns, rows, row_classes=classes),
        open="" if count <= _OPEN_ROWS else None,
    )


def _row(each: RankedPod) -> list[Child]:
    growth = None if each.growth_bytes_per_s is None else int(each.growth_bytes_per_s)
    name: Child = element("strong", each.pod) if each.is_victim else each.pod
    return [
        name,
        ABSENT if each.rank is None else str(each.rank),
        ABSENT if each.priority is None else str(each.priority),
        size(each.used_bytes),
        size(each.credit_bytes),
        size(growth),
        format_ns(each.caused_ns) if each.caused_ns else ABSENT,
        each.why,
    ]


def returned_section(rows: Sequence[Returned]) -> Node:
    """Return which memory came back when."""
    if not rows:
        return section(
            "returned", "What came back when", element("p", "No pod was evicted, so none was to release memory.")
        )
    columns = [
        Column("Pod"),
        Column("Evicted, UTC"),
        Column("Expected", is_number=True),
        Column("Back, UTC"),
        Column("After", is_number=True),
        Column("What became of it"),
    ]
    cells: list[list[Child]] = [
        [
            each.pod,
            ABSENT if each.evicted_s is None else clock(each.evicted_s),
            size(each.credit_bytes),
            "not seen" if each.back_s is None else clock(each.back_s),
            ABSENT if each.after_ns is None else format_ns(each.after_ns),
            each.note,
        ]
        for each in rows
    ]
    return section("returned", "What came back when", table("Memory of evicted pods", columns, cells))


def node_section(found: Sequence[Fact], signals: Sequence[str]) -> Node:
    """Return what is known of the node, its kernel and its signals."""
    quality = element("ul", *(element("li", text) for text in signals)) if signals else element("p", "Not recorded.")
    return section(
        "node",
        "Node, kernel and signals",
        facts([(each.name, each.value) for each in found]),
        element("h3", "What decisions rest on"),
        quality,
    )


def missing_section(said: Sequence[str]) -> Node | None:
    """Return what the source does not have; nothing where it has all."""
    if not said:
        return None
    return section("missing", "What is missing", element("ul", *(element("li", text) for text in said)))


def incident_page(incident: Incident) -> str:
    """Return a whole HTML file; what is not known has no section, and is named in the last one."""
    sections = [
        timeline_section(incident.timeline),
        *(chart_section(chart, incident.marks) for chart in incident.charts),
        heat_section(incident.heat),
        decisions_section(incident.decisions),
        returned_section(incident.returned),
        node_section(incident.facts, incident.signals),
        missing_section(incident.missing),
    ]
    shown = [each for each in sections if each is not None]
    title = f"Incident on {incident.node}, {moment(incident.first_s)}"
    lead = [
        element("p", span(incident.first_s, incident.last_s), class_="when"),
        element("p", incident.summary, class_="lead"),
    ]
    command = "koordebpf explain" if incident.kind == "audit" else "koordebpf replay"
    foot = f"Made by koordebpf {__version__} from the {incident.kind} {incident.source}. {command} says more of it."
    data = charts_json(incident.charts, incident.marks) if incident.charts else None
    return whole_page(title, f"Incident on {incident.node}", lead, shown, foot, data)


def whole_page(title: str, heading: str, lead: list[Node], sections: list[Node], foot: str, data: object | None) -> str:
    """Return a page of these sections; each has a heading h2, and the list of contents leads to them.

    Args:
        title: of the window.
        heading: of the page.
        lead: what stands below it.
        sections: in order, each with an id.
        foot: where it is from.
        data: of plots; None: there is none, and no script.
    """
    styles = _asset("uPlot.min.css") + _asset("style.css")
    code = f"/*\n{_asset('uPlot.LICENSE')}\n*/\n{_asset('uPlot.iife.min.js')}\n{_asset('page.js')}"
    scripts = [json_script("data", data), script(code)] if data is not None else []
    allowed = f"script-src {content_hash(code)}" if data is not None else "script-src 'none'"
    policy = f"default-src 'none'; {allowed}; style-src {content_hash(styles)}; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        style(styles),
    )
    no_plots = element("p", "The plots need JavaScript. The tables below have the same numbers.", class_="note")
    body = element(
        "body",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("header", element("h1", heading), *lead),
        _contents(sections),
        element("main", element("noscript", no_plots) if data is not None else None, *sections, id="main", tabindex=-1),
        element("footer", element("p", foot)),
        *scripts,
    )
    return document(head, body)


def _contents(sections: list[Node]) -> Node:
    made = element("ul")
    for each in sections:
        heading = each.find("h2")
        if heading is not None:
            made.append(element("li", element("a", heading.text, href=f"#{each.get('id')}")))
    return element("nav", made, aria_label="Contents")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
