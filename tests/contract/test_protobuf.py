"""What `kube.clients.protobuf` reads and writes is what the library protobuf reads and writes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError as LibraryDecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from koordebpf.errors import DecodeError
from koordebpf.kube.clients.protobuf import decode, encode
from tests.contract.protobuf_classes import message_classes

MESSAGES = {
    "Leaf": {"number": (1, "int32"), "text": (16, "string")},
    "Tree": {
        "id": (1, "string"),
        "count": (2, "int64"),
        "leaf": (3, "Leaf"),
        "leaves": (4, "*Leaf"),
        "numbers": (5, "*int64"),
        "texts": (300, "*string"),
        "large": (6, "uint64"),
        "is_so": (7, "bool"),
        "share": (8, "double"),
        "blob": (9, "bytes"),
        "blobs": (10, "*bytes"),
    },
}
CLASSES = message_classes("test.v1", MESSAGES)

_INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_LEAF = st.fixed_dictionaries({"number": _INT32, "text": st.text()})
_TREE = st.fixed_dictionaries(
    {
        "id": st.text(),
        "count": _INT64,
        "leaf": st.none() | _LEAF,
        "leaves": st.lists(_LEAF),
        "numbers": st.lists(_INT64),
        "texts": st.lists(st.text()),
        "large": st.integers(0, (1 << 64) - 1),
        "is_so": st.booleans(),
        "share": st.floats(allow_nan=False),
        "blob": st.binary(),
        "blobs": st.lists(st.binary()),
    }
)


@given(_TREE)
@example({"share": -0.0})
def test_what_is_written_is_read_by_the_library(tree: dict[str, Any]) -> None:
    assert CLASSES["Tree"].FromString(encode(MESSAGES, "Tree", tree)) == CLASSES["Tree"](**tree)


@given(_TREE)
def test_what_the_library_writes_is_read(tree: dict[str, Any]) -> None:
    assert decode(MESSAGES, "Tree", CLASSES["Tree"](**tree).SerializeToString()) == tree


@given(_TREE)
def test_fields_that_are_not_in_the_table_are_skipped(tree: dict[str, Any]) -> None:
    less = {**MESSAGES, "Tree": {"texts": MESSAGES["Tree"]["texts"]}}
    assert decode(less, "Tree", CLASSES["Tree"](**tree).SerializeToString()) == {"texts": tree["texts"]}


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        found = decode(MESSAGES, "Tree", data)
    except DecodeError:
        return
    try:
        said = CLASSES["Tree"].FromString(data)
    except LibraryDecodeError:  # it is stricter: a text that is no UTF-8, a field of another type, field number 0
        return
    assert [int(each) for each in MessageToDict(said).get("numbers", [])] == found["numbers"]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abc", b"\x08", b"\x10" + b"\xff" * 10, b"\x0b", b"\x12\x00"])
def test_what_is_cut_short_or_of_another_type_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(MESSAGES, "Tree", data)
