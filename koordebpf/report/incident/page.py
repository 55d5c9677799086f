"""`Incident` to one HTML file that needs no network: styles, script, the plotting library and data are in it.

Its Content-Security-Policy allows nothing to be loaded, and no style and no script but these, by their hashes.
"""

from __future__ import annotations

from pathlib import Path

from koordebpf import __version__
from koordebpf.report.incident.amounts import moment, span
from koordebpf.report.incident.charts import chart_section, charts_json
from koordebpf.report.incident.markup import Node, content_hash, document, element, json_script, script, style
from koordebpf.report.incident.parts import (
    decisions_section,
    heat_section,
    missing_section,
    node_section,
    returned_section,
    timeline_section,
)
from koordebpf.report.incident.values import Incident

_ASSETS = Path(__file__).parent / "assets"


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
