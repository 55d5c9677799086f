"""JSON values to frozen structs, with errors that name the place; and JSON laid over JSON as Koordinator does it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from koordebpf.errors import NOT_GIVEN, ConfigError, json_error
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

# Source: koordinator pkg/util/sloconfig/nodeslo_config.go, DefaultResourceThresholdStrategy.
DEFAULT_STRATEGY = ResourceThresholdStrategy(
    enable=False,
    cpuSuppressThresholdPercent=65,
    cpuSuppressPolicy="cpuset",
    memoryEvictThresholdPercent=70,
    cpuEvictPolicy="evictByRealLimit",
)
_BOOLS = frozenset({"enable"})
_TEXTS = frozenset({"cpuSuppressPolicy", "cpuEvictPolicy"})
_PRIORITIES = frozenset({"evictEnabledPriorityThreshold", "allocatableEvictPriorityThreshold"})
# Allocatable memory and CPU may be requested above 100 % of what there is.
_UNBOUNDED = frozenset(
    {
        "memoryAllocatableEvictThresholdPercent",
        "memoryAllocatableEvictLowerPercent",
        "cpuAllocatableEvictThresholdPercent",
        "cpuAllocatableEvictLowerPercent",
    }
)
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


def overlay(base: ResourceThresholdStrategy, written: Mapping[str, Any], path: str) -> ResourceThresholdStrategy:
    """Return `base` with the fields that `written` names; null and unknown fields change nothing.

    Raises: ConfigError: a value has the wrong type.
    """
    changes = {
        name: _checked(name, written[name], f"{path}.{name}")
        for name in ResourceThresholdStrategy.__struct_fields__
        if written.get(name) is not None
    }
    return msgspec.structs.replace(base, **changes)


def decode_object(raw: bytes | str | msgspec.Raw, path: str) -> dict[str, Any]:
    """Return the JSON object in `raw`.

    Raises: ConfigError: not JSON, or not an object.
    """
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        text = raw.encode(errors="surrogatepass") if isinstance(raw, str) else bytes(raw)
        # The path stays the key: what is effective of it is looked up by that. The place in it is in the rule.
        found = json_error("", text, error)
        place = found.path.lstrip(":")
        rule = f"must be JSON: at {place}: {found.rule.removeprefix('must be JSON: ')}" if place else found.rule
        raise ConfigError(path, NOT_GIVEN, rule) from error
    if not isinstance(value, dict):
        raise ConfigError(path, value, "must be an object")
    return value


def member(of: Mapping[str, Any], name: str, path: str) -> dict[str, Any] | None:
    """Return the object at `name`; None where it is absent or null.

    Raises: ConfigError: it is something else.
    """
    value = of.get(name)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{path}.{name}" if path else name, value, "must be an object")
    return value


def entries_of(config: Mapping[str, Any], name: str, path: str) -> list[Any]:
    """Return the array at `name`; an absent one is empty.

    Raises: ConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{path}.{name}", value, "must be an array")
    return value


def _checked(name: str, value: object, path: str) -> bool | str | int:
    if name in _BOOLS:
        if isinstance(value, bool):
            return value
        raise ConfigError(path, value, "must be true or false")
    if name in _TEXTS:
        if isinstance(value, str):
            return value
        raise ConfigError(path, value, "must be a string")
    bits = 32 if name in _PRIORITIES else 64
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << bits - 1) <= value < 1 << bits - 1:
        return value
    if name in _PRIORITIES:
        rule = "must be an integer of 32 bits"
    elif name in _UNBOUNDED:
        rule = "must be an integer, 0 or more"
    elif name.endswith("Percent"):
        rule = "must be an integer 0…100"
    else:
        rule = "must be an integer, 1 or more"
    raise ConfigError(path, value, rule)


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
