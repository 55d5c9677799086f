"""Errors say where, what and why, in one line."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.errors import NOT_GIVEN, ConfigError, errno_name, json_error, os_reason, text_error, unreadable


@pytest.mark.parametrize(
    ("value", "text"),
    [("x", "a.b: 'x': must be 1"), (None, "a.b: None: must be 1"), (NOT_GIVEN, "a.b: must be 1")],
)
def test_a_value_that_was_not_given_is_left_out(value: object, text: str) -> None:
    assert str(ConfigError("a.b", value, "must be 1")) == text


def test_a_file_that_cannot_be_read() -> None:
    assert str(unreadable("a", PermissionError(13, "Permission denied"))) == "a: Permission denied"


@pytest.mark.parametrize(
    ("error", "reason", "name"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied", "EACCES"),
        (TimeoutError("timed out"), "timed out", "timed out"),
        (OSError(99_999, "a new one"), "a new one", "[Errno 99999] a new one"),
    ],
)
def test_a_system_call_that_failed(error: OSError, reason: str, name: str) -> None:
    assert (os_reason(error), errno_name(error)) == (reason, name)


def place(raw: bytes, **options: int) -> str:
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return json_error("f", raw, error, **options).path
    raise AssertionError("that was JSON")


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b"", "f:1:1"),
        (b"x", "f:1:1"),
        (b'{"a": 1,\n  "b": x}', "f:2:8"),
        ('{"ä": x}'.encode(), "f:1:7"),
        (b'{"a": [1,\n\n', "f:3:1"),
    ],
)
def test_json_has_line_and_column(raw: bytes, at: str) -> None:
    assert place(raw) == at


def test_a_line_of_a_file_of_lines_has_its_number() -> None:
    assert place(b'{"a": x}', first_line=7) == "f:7:7"
    error = msgspec.ValidationError("Object missing required field `x`")
    assert str(json_error("f", b"{}", error, first_line=7)) == "f:7:1: must be JSON: Object missing required field `x`"
    assert str(json_error("f", b"{}", error)) == "f: must be JSON: Object missing required field `x`"


@given(st.binary(max_size=60), st.integers(min_value=0, max_value=80))
def test_any_byte_has_a_place(raw: bytes, offset: int) -> None:
    *_, line, column = text_error("f", raw, offset, "x").path.split(":")
    assert 1 <= int(line) <= raw.count(b"\n") + 1
    assert 1 <= int(column) <= len(raw) + 1
