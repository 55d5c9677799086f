"""The page of an incident: hostile names stay text, nothing is loaded, and the tables have what the plots have."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import koordebpf.tools.incident.page as module
from koordebpf.tools.incident.charts import (
    Column,
    charts_json,
    colours,
    element,
    json_script,
    sampled,
    script,
    style,
    table,
)
from koordebpf.tools.incident.page import incident_page
from koordebpf.tools.incident.values import Incident
from tests.support.values.incidents import HOSTILE, incident

ASSETS = Path(module.__file__).parent / "assets"
MAX_PAGE_BYTES = 2 << 20


class Parsed(HTMLParser):
    """A page as a browser reads it: elements, attributes and texts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)

    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


@pytest.fixture(scope="module")
def hostile() -> str:
    return incident_page(incident(names=HOSTILE))


def test_hostile_names_add_no_element_and_no_attribute(hostile: str) -> None:
    parsed, plain = Parsed(hostile), Parsed(incident_page(incident()))
    assert parsed.tags() == plain.tags()
    assert parsed.tags().count("script") == 2
    assert {name for _, attributes in parsed.elements for name in attributes} == {
        name for _, attributes in plain.elements for name in attributes
    }
    assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)


def test_hostile_names_are_shown(hostile: str) -> None:
    parsed = Parsed(hostile)
    shown = [text for texts in parsed.texts.values() for text in texts]
    for name in HOSTILE[:5]:
        assert name in shown
    assert "\\u{202e}gpj.sh\\x1b[2J\\x00\\u{2028}" in shown
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e\u2028]", hostile.replace("\n", ""))


def test_controls_in_attributes_are_shown() -> None:
    made = element("td", "\x1b[2J", class_="\u202egpj.sh", data_name="a\x00")
    assert (made.text, made.get("class"), made.get("data-name")) == ("\\x1b[2J", "\\u{202e}gpj.sh", "a\\x00")


def test_data_of_the_script_is_what_it_was(hostile: str) -> None:
    (raw,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', hostile, re.DOTALL)
    assert "<" not in raw and ">" not in raw and "&" not in raw
    assert [each["name"] for each in json.loads(raw)["charts"][0]["series"][:6]] == list(HOSTILE)


def test_nothing_leads_out_of_the_page(hostile: str) -> None:
    loading = {"src", "srcset", "href", "data", "poster", "action", "formaction", "background"}
    for tag, attributes in Parsed(hostile).elements:
        for name in loading & attributes.keys():
            assert str(attributes[name]).startswith("#"), (tag, attributes)
    ours = (
        (ASSETS / "style.css").read_text() + (ASSETS / "page.js").read_text() + (ASSETS / "uPlot.min.css").read_text()
    )
    assert "url(" not in ours and "@import" not in ours and "http" not in ours


def test_the_policy_allows_these_texts_and_nothing_else(hostile: str) -> None:
    (policy,) = [attributes["content"] for tag, attributes in Parsed(hostile).elements if "http-equiv" in attributes]
    code = re.findall(r"<script>(.*?)</script>", hostile, re.DOTALL)[0]
    styles = re.findall(r"<style>(.*?)</style>", hostile, re.DOTALL)[0]
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (code, styles)]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; base-uri 'none';"
        " form-action 'none'"
    )
    assert not any("style" in attributes for _, attributes in Parsed(hostile).elements)


def test_an_hour_of_1000_pods_is_small() -> None:
    page = incident_page(incident(pods=1000, moments=900))
    assert len(page.encode()) < MAX_PAGE_BYTES


def test_every_part_has_a_heading_that_the_contents_lead_to() -> None:
    parsed = Parsed(incident_page(incident()))
    sections = [attributes for tag, attributes in parsed.elements if tag == "section"]
    links = [attributes["href"] for tag, attributes in parsed.elements if tag == "a"]
    assert [f"#{each['id']}" for each in sections] == links[1:]
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {str(each["aria-labelledby"]) for each in sections} <= set(ids)
    for landmark in ("header", "nav", "main", "footer"):
        assert parsed.tags().count(landmark) == 1


def test_each_plot_has_a_table_with_its_numbers() -> None:
    made = incident(moments=200)
    parsed = Parsed(incident_page(made))
    captions = parsed.texts["caption"]
    for chart in made.charts:
        assert f"{chart.title}, 60 of 200 moments" in captions
    assert "2.0 GiB" in parsed.texts["td"] and "3.50" in parsed.texts["td"]
    assert "–" in parsed.texts["td"]


def test_a_page_without_plots_has_no_script() -> None:
    made = Incident(
        node="n", source="audit.jsonl", kind="audit", first_s=0.0, last_s=9.0, summary="0 decisions.", missing=("all",)
    )
    page = incident_page(made)
    assert "<script" not in page and "script-src 'none'" in page and "<noscript" not in page
    assert "What is missing" in page and "No pod was to be evicted" in page


def test_a_stack_keeps_its_colours_and_others_have_theirs() -> None:
    memory = incident(pods=30).charts[0]
    assert colours(memory) == [
        *(f"c{number}" for number in range(10)),
        "others",
        "outside",
        "ink",
        "threshold",
        "lower",
    ]
    assert set(colours(memory)) <= set(re.findall(r"--([a-z0-9]+):", (ASSETS / "style.css").read_text()))


def test_whole_numbers_take_no_point() -> None:
    values = charts_json(incident().charts, ())["charts"][0]["series"][-1]["values"]
    assert all(isinstance(each, int) for each in values)


@pytest.mark.parametrize("count", [0, 1, 59, 60, 61, 900])
def test_a_sample_has_the_first_and_the_last(count: int) -> None:
    places = sampled(count)
    assert len(places) == min(count, 60) == len(set(places))
    assert not places or (places[0], places[-1]) == (0, count - 1)


def test_a_text_that_would_end_its_element_is_refused() -> None:
    for make in (script, style):
        with pytest.raises(ValueError, match="would end"):
            make(f"a </{make.__name__.upper()} b")
        with pytest.raises(ValueError, match="would end"):
            make("<!--")
    assert json_script("data", "</script><!--").text == '"\\u003c/script\\u003e\\u003c!--"'


def test_a_table_needs_a_cell_for_each_column() -> None:
    from koordebpf.tools.incident.charts import Column

    with pytest.raises(ValueError, match="zip"):
        table("t", [Column("a"), Column("b")], [["1", "2", "3"]])


def test_texts_stand_between_elements() -> None:
    made = element("p", "a", element("b", "c"), "d", None, "e", class_="x", aria_label=None)
    assert (made.text, made[0].tail, made.attrib) == ("a", "de", {"class": "x"})


def test_the_plotting_library_is_the_one_that_the_note_names() -> None:
    note = (ASSETS / "README.md").read_text()
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() in note
    assert "The MIT License" in (ASSETS / "uPlot.LICENSE").read_text()
    assert "Copyright (c) 2022 Leon Sorokin" in incident_page(incident())  # each copy has to say so


def test_the_first_cell_of_a_row_is_its_heading() -> None:
    made = table("pods", [Column("name"), Column("bytes", is_number=True)], [["web", "7"], ["batch", "8"]])
    rows = [[(cell.tag, cell.text, cell.get("class")) for cell in row] for row in made.iter("tr")]
    assert rows == [
        [("th", "name", None), ("th", "bytes", "n")],
        [("th", "web", None), ("td", "7", "n")],
        [("th", "batch", None), ("td", "8", "n")],
    ]
