"""A list that comes in parts, cut anywhere, is the list that msgspec reads whole."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.kube.cache.list_stream import ListStream
from koordebpf.kube.cache.store import Identity, decode_list

TEXT = st.text(st.sampled_from('ab"\\{}[],:\n\u00e9'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.just("items"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
META = st.fixed_dictionaries({"resourceVersion": st.just("7"), "continue": st.sampled_from(["", "x"])})
LISTS = st.builds(
    lambda meta, items, others, is_first: {
        **({"metadata": meta} if is_first else {}),
        "items": items,
        **others,
        **({} if is_first else {"metadata": meta}),
    },
    META,
    st.none() | st.lists(OBJECTS, max_size=4),
    st.dictionaries(st.sampled_from(["kind", "other", "x"]), VALUES, max_size=2),
    st.booleans(),
)


@st.composite
def parts(draw: st.DrawFn, body: bytes) -> list[bytes]:
    """Cut a text anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))
    return [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]


@given(LISTS, st.sampled_from([None, 1]), st.booleans(), st.data())
def test_it_is_the_list_that_is_read_whole(value, indent, is_ascii, data) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode()
    expected = decode_list(body)
    stream = ListStream(data.draw(parts(body)), 1 << 20)
    assert [bytes(each) for each in stream] == [bytes(each) for each in expected.items or ()]
    assert stream.metadata == expected.metadata


@given(LISTS, st.data())
def test_one_that_is_cut_is_no_list(value, data) -> None:
    body = json.dumps(value).encode()
    until = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(msgspec.DecodeError):
        list(ListStream(data.draw(parts(body[:until])), 1 << 20))


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=6), st.data())
def test_what_is_too_large_is_named_and_no_other_is_missing(sizes, data) -> None:
    items = [{"metadata": {"name": f"n{at}", "uid": f"u{at}"}, "x": "y" * size} for at, size in enumerate(sizes)]
    body = json.dumps({"items": items}).encode()
    found = list(ListStream(data.draw(parts(body)), 2000))
    assert len(found) == len(items)
    for one, item in zip(found, items, strict=True):
        is_large = len(json.dumps(item)) > 2000
        assert isinstance(one, Identity) is is_large
        name = item["metadata"]
        assert (one == Identity(**name)) if is_large else (bytes(one) == json.dumps(item).encode())


@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]",\\a:1'), max_size=40).map(str.encode), st.data())
def test_nothing_but_an_error_comes_of_garbage(body, data) -> None:
    try:
        found = list(ListStream(data.draw(parts(body)), 1 << 20))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    assert all(isinstance(each, msgspec.Raw) for each in found)
