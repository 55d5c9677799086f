"""A null that a type does not take is left out; all else is as msgspec has it."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.decoding import convert, decoder, without_nulls


class Part(msgspec.Struct, frozen=True):
    name: str = "none"
    count: int | None = 7
    more: dict[str, str | int] = {}
    raw: msgspec.Raw = msgspec.Raw(b"")


class Whole(msgspec.Struct, frozen=True):
    part: Part
    parts: list[Part] = []


def test_null_is_left_out_at_every_depth() -> None:
    text = b'{"part": {"name": null, "more": {"a": null, "b": 1}}, "parts": [{"name": null}, {"name": "x"}]}'
    expected = Whole(Part(more={"b": 1}), [Part(), Part("x")])
    for each in (text, text.decode(), msgspec.Raw(text), bytearray(text)):
        assert decoder(Whole).decode(each) == expected
    assert convert(msgspec.json.decode(text), Whole) == expected


def test_raw_parts_stay_text() -> None:
    found = decoder(Whole).decode(b'{"part": {"name": null, "raw": {"a": [1, null]}}}')
    assert msgspec.json.decode(found.part.raw) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b'{"part": null}', "missing required field `part`"),
        (b'{"part": {"name": 1, "more": {"a": null}}}', "Expected `str`, got `int` - at `$.part.name`"),
        (b'{"part": {"more": {"a": null}, "name": 1}}', "Expected `str`, got `int` - at `$.part.name`"),
        (b'{"part": {}, "parts": [null]}', r"Expected `object`, got `null` - at `$.parts[0]`"),
        (b"null", "Expected `object`, got `null`"),
    ],
)
def test_what_is_wrong_all_the_same_is_named(text: bytes, rule: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        decoder(Whole).decode(text)
    assert rule in str(caught.value)
    with pytest.raises(msgspec.ValidationError) as caught:
        convert(msgspec.json.decode(text), Whole)
    assert rule in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b'{"part": {"name": nul}}', b"\xff"])
def test_malformed_text_is_a_decode_error(text: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        decoder(Whole).decode(text)


def test_deep_nulls_end_in_one_of_two_errors() -> None:
    text = b'{"part": {"name": null}, "other": ' + b'{"a":' * 100_000 + b"null" + b"}" * 100_001
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        decoder(Whole).decode(text)


def test_one_decoder_for_a_type() -> None:
    assert decoder(Whole) is decoder(Whole)
    assert decoder(list[Part]) is decoder(list[Part])


def test_items_of_lists_stay() -> None:
    assert without_nulls({"a": [None, {"b": None, "c": 1}], "d": None}) == {"a": [None, {"c": 1}]}
