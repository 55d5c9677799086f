"""JSON documents of a type that msgspec decodes, in which any field of an object and any value of a map may be null."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

_WORDS = st.sampled_from(["", "a", "b", "1"])
_PLAIN = st.one_of(_WORDS, st.integers(0, 9), st.booleans(), st.lists(st.integers(0, 3), max_size=2))


def documents(kind: Any) -> st.SearchStrategy[Any]:
    """Return documents of `kind`. What may be anything holds no null: there nothing says what a null is."""
    return _of(msgspec.inspect.type_info(kind), 4)


def _of(kind: msgspec.inspect.Type, depth: int) -> st.SearchStrategy[Any]:
    match kind:
        case msgspec.inspect.StructType(fields=fields):
            return st.fixed_dictionaries(
                {}, optional={each.encode_name: _or_null(each.type, depth) for each in fields if depth}
            )
        case msgspec.inspect.DictType(value_type=value):
            is_any = isinstance(value, msgspec.inspect.AnyType)
            return st.dictionaries(_WORDS, _PLAIN if is_any else _or_null(value, depth), max_size=2 if depth else 0)
        case msgspec.inspect.CollectionType(item_type=item):
            return st.lists(_of(item, depth - 1), max_size=2) if depth else st.just([])
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*(_of(each, depth) for each in types if not isinstance(each, msgspec.inspect.NoneType)))
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case msgspec.inspect.EnumType(cls=cls):
            return st.sampled_from([each.value for each in cls])
    return _scalar(kind)


def _scalar(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case msgspec.inspect.StrType():
            return _WORDS
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.IntType():
            return st.integers(0, 9)
        case msgspec.inspect.FloatType():
            return st.sampled_from([0.5, 2.5])
        case msgspec.inspect.DateTimeType():
            return st.just("2026-11-21T12:00:00Z")
    return _PLAIN  # anything


def _or_null(kind: msgspec.inspect.Type, depth: int) -> st.SearchStrategy[Any]:
    some = st.deferred(lambda: _of(kind, depth - 1))
    return some if isinstance(kind, msgspec.inspect.RawType) else st.one_of(st.none(), some)
