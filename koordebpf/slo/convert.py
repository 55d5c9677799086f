"""JSON values to frozen structs, with errors that name the place; and JSON laid over JSON as Koordinator does it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from koordebpf.errors import ConfigError

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_AT = re.compile(r"^(?P<rule>.*?)(?: - at `\$(?P<at>[^`]*)`)?$", re.DOTALL)
_PLAIN = {
    "int": "an integer",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "float": "a number",
}
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")


def converted(value: Any, wanted: type[T], path: str) -> T:
    """Return `value`, as decoded from JSON, as a `wanted`. Unknown fields are skipped, as the API server does.

    Raises: ConfigError: a value has the wrong type or lies outside its range; names path, value and rule.
    """
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        found = _AT.match(str(error))
        rule, at = (found["rule"], found["at"] or "") if found else (str(error), "")
        raise ConfigError(f"{path}{at}", _value_at(value, at), _plain(rule, wanted, at)) from None


def laid_over(base: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with what `written` names: objects merge, anything else is replaced, null changes nothing.

    Source: koordinator pkg/slo-controller/nodeslo/resource_strategy.go: the later is marshalled and unmarshalled onto
    the earlier, and a field that is nil is not marshalled.
    """
    merged = dict(base)
    for name, value in written.items():
        below = merged.get(name)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[name] = laid_over(below, value)
        elif value is not None:
            merged[name] = value
    return merged


def overlaid(base: S, written: Mapping[str, Any], path: str) -> S:
    """Return `base` with the fields that `written` names, nested objects merged.

    Raises: ConfigError: as `converted`.
    """
    if not isinstance(written, Mapping):
        raise ConfigError(path, written, "must be an object")
    return converted(laid_over(msgspec.to_builtins(base), written), type(base), path)


def as_json(value: Any) -> Any:
    """Return `value` as a server sends it back: lists where it has tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _value_at(value: Any, at: str) -> Any:
    for name, index in _STEP.findall(at):
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            break
    return value if not isinstance(value, dict | list) or not value else f"{str(value)[:60]}…"


def _plain(rule: str, wanted: Any, at: str) -> str:
    # msgspec: "Expected `int` <= 100", "Expected `int | null`, got `str`", "Invalid enum value 'x'".
    text = rule.replace(" | null", "").replace("`", "")
    if text.startswith("Invalid enum value"):
        return f"must be one of {', '.join(_words_at(msgspec.inspect.type_info(wanted), _STEP.findall(at)))}"
    found = re.match(r"Expected (\w+)(.*)$", text)
    if found is None:
        return text[:1].lower() + text[1:]
    kind, bound = found.groups()
    return f"must be {_PLAIN.get(kind, kind)}" + ("" if bound.startswith(", got") else bound)


def _words_at(of: msgspec.inspect.Type, steps: list[tuple[str, str]]) -> list[str]:
    if isinstance(of, msgspec.inspect.UnionType):
        return [word for each in of.types for word in _words_at(each, steps)]
    if isinstance(of, msgspec.inspect.LiteralType):
        return [str(word) for word in of.values]
    if isinstance(of, msgspec.inspect.VarTupleType):
        return _words_at(of.item_type, steps[1:])
    if isinstance(of, msgspec.inspect.StructType) and steps:
        field = next((field for field in of.fields if field.encode_name == steps[0][0]), None)
        return _words_at(field.type, steps[1:]) if field else []
    return []
