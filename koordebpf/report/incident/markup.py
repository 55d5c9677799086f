"""HTML as elements of the standard library's ElementTree, which escapes every text and attribute when it writes them.

Names on a page are hostile: no part of it is put together from strings. The two elements that HTML does not escape,
style and script, are made by functions of their own, which refuse what would end them.
"""

from __future__ import annotations

import base64
import hashlib
import xml.etree.ElementTree as ET
from typing import Any

import msgspec

from koordebpf.printable import json_bytes, printable

Node = ET.Element
Child = ET.Element | str | None


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
