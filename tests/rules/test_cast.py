"""docs/cast: the recording of a demo on a terminal, and the picture that is made of it."""

from __future__ import annotations

import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/cast"


def record_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cast_record", FOLDER / "record.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CAST = record_module()
HEAD, *EVENTS = map(json.loads, (FOLDER / "hog.cast").read_text().splitlines())


def test_it_is_an_asciicast_of_version_2() -> None:
    assert HEAD["version"] == 2
    assert (HEAD["width"], HEAD["height"]) == (80, 48)
    assert all(kind == "o" and isinstance(text, str) for _, kind, text in EVENTS)
    assert [at for at, _, _ in EVENTS] == sorted(at for at, _, _ in EVENTS)


def test_it_is_a_demo_that_went_as_it_should() -> None:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "".join(text for _, _, text in EVENTS))
    assert plain.startswith("koordebpf demo: a best-effort pod eats the node\r\n")
    assert "evicting default/hog (priority 5000" in plain
    assert "verdict: as it should be" in plain
    assert max(map(len, plain.splitlines())) <= 80


def test_the_picture_is_made_of_it() -> None:
    assert CAST.picture((FOLDER / "hog.cast").read_text()) == (FOLDER / "hog.svg").read_text()


def test_the_picture_has_each_line_at_the_moment_when_it_was_printed() -> None:
    cast = (
        '{"version": 2, "width": 80, "height": 24, "title": "a < b"}\n'
        '[0.5, "o", "one\\r\\nt"]\n[1.0, "o", "\\u001b[31mwo\\u001b[0m < 3\\r\\n\\r\\n"]\n[2.5, "o", "end"]\n'
    )
    picture = ET.fromstring(CAST.picture(cast))
    space = {"s": "http://www.w3.org/2000/svg"}
    rows = [
        (row.get("style"), "".join(row.itertext()), [span.get("class") for span in row.findall("s:tspan", space)])
        for row in picture.findall("s:text", space)
    ]
    assert rows == [
        ("animation-delay: 0.50s", "one", [None]),
        ("animation-delay: 0.50s", "two < 3", [None, "red", None]),
        ("animation-delay: 2.50s", "end", [None]),
    ]


def test_the_picture_loads_nothing() -> None:
    text = (FOLDER / "hog.svg").read_text().replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text
    assert "url(" not in text
