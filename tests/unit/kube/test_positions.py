"""Where a field stands in the text of a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.configuration.file import position

TEXT = b"a: 1\nb:\n  - c: 2\n    d: [x, {e: 3}]\n"


@pytest.mark.parametrize(
    ("path", "at"),
    [
        ("a", (1, 1)),
        ("b", (2, 1)),
        ("b[0]", (3, 5)),
        ("b[0].c", (3, 5)),
        ("b[0].d[1].e", (4, 13)),
        ("b[0].none", (3, 5)),
        ("b[7]", (2, 1)),
        ("a.b.c", (1, 1)),
        ("none", None),
        ("", None),
    ],
)
def test_a_field_of_yaml(path: str, at: tuple[int, int] | None) -> None:
    assert position(TEXT, path) == at


def test_a_field_of_json() -> None:
    assert position(b'{"a": 1,\n "b": {"c": 2}}', "b.c") == (2, 8)


@given(st.binary(max_size=40), st.text(max_size=20))
def test_any_text_and_path_have_an_answer(text: bytes, path: str) -> None:
    found = position(text, path)
    assert found is None or min(found) >= 1
