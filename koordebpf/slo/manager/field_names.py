"""Names of fields as Go's encoding/json matches them, which Koordinator reads its configuration with.

A field is found by its exact name, else by one that differs in case only. What matches none has no effect: here it is
named.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import msgspec.inspect as of


class UnknownField(msgspec.Struct, frozen=True):
    """A field that nothing reads, and the known one whose name is nearest."""

    path: str
    near: str | None

    def __str__(self) -> str:
        hint = f"; did you mean {self.near}?" if self.near else ""
        return f"{self.path}: no such field, it has no effect{hint}"


def named(value: Any, wanted: Any) -> Any:
    """Return `value`, as decoded from JSON, with the names of its fields as the type `wanted` spells them.

    Of two names that match one field the later counts, as in Go. What has another type than it should stays as it is.
    """
    return _named(value, _info(wanted))


def unknown_fields(value: Any, wanted: Any, path: str) -> Iterator[UnknownField]:
    """Yield the fields that the type `wanted` does not have, at any depth."""
    yield from _unknown(value, _info(wanted), path)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one; None where none is.

    >>> nearest("memoryEvictTresholdPercent", ["memoryEvictThresholdPercent", "memoryEvictLowerPercent"])
    'memoryEvictThresholdPercent'
    """
    spelled = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=0.7)
    return spelled[found[0]] if found else None


def no_such(name: str, known: Iterable[str], what: str = "field") -> str:
    """Return the rule of a name that is none: with the nearest known one, else with all of them.

    >>> no_such("MemoryEvct", ["MemoryEvict", "CPUEvict"], "gate")
    'no such gate; did you mean MemoryEvict?'
    """
    names = list(known)
    near = nearest(name, names)
    return f"no such {what}; did you mean {near}?" if near else f"no such {what}; known are {', '.join(names)}"


@functools.cache
def _info(wanted: Any) -> of.Type:
    return of.type_info(wanted)


def _named(value: Any, info: of.Type) -> Any:
    match _narrowed(info, value):
        case of.StructType() as struct:
            fields, spelled = _fields(struct.cls), _spelled(struct.cls)
            result: dict[str, Any] = {}
            for name, each in value.items():
                known = name if name in fields else spelled.get(name.lower())
                result[known or name] = _named(each, fields[known]) if known else each
            return result
        case of.ListType(item_type=item) | of.VarTupleType(item_type=item):
            return [_named(each, item) for each in value]
    return value


def _unknown(value: Any, info: of.Type, path: str) -> Iterator[UnknownField]:
    match _narrowed(info, value):
        case of.StructType() as struct:
            fields, spelled = _fields(struct.cls), _spelled(struct.cls)
            for name, each in value.items():
                at = f"{path}.{name}" if path else name
                known = name if name in fields else spelled.get(name.lower())
                if known is None:
                    yield UnknownField(at, nearest(name, fields))
                else:
                    yield from _unknown(each, fields[known], at)
        case of.ListType(item_type=item) | of.VarTupleType(item_type=item):
            for index, each in enumerate(value):
                yield from _unknown(each, item, f"{path}[{index}]")


# The struct or list of a type that a value of JSON can be; None: neither.
def _narrowed(info: of.Type, value: Any) -> of.Type | None:
    if isinstance(info, of.UnionType):
        return next((found for each in info.types if (found := _narrowed(each, value)) is not None), None)
    if isinstance(info, of.Metadata):
        return _narrowed(info.type, value)
    if isinstance(value, dict) and isinstance(info, of.StructType):
        return info
    if isinstance(value, list) and isinstance(info, of.ListType | of.VarTupleType):
        return info
    return None


@functools.cache
def _fields(struct: type[msgspec.Struct]) -> Mapping[str, of.Type]:
    return {field.encode_name: field.type for field in of.type_info(struct).fields}  # type: ignore[attr-defined]


@functools.cache
def _spelled(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    return {name.lower(): name for name in _fields(struct)}
