"""The keys of `slo-controller-config`, and the shape of each and of a NodeSLO's spec; names match as in Go's JSON.

Source: koordinator apis/configuration/slo_controller_config.go, apis/slo/v1alpha1/nodeslo_types.go.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import msgspec.inspect as of

from koordebpf.slo.convert import decode_object
from koordebpf.slo.manager.colocation import ColocationStrategy
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.slo.strategies.host_applications import HostApplication
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.system import SystemStrategy

THRESHOLD_KEY: Final = "resource-threshold-config"
QOS_KEY: Final = "resource-qos-config"
CPU_BURST_KEY: Final = "cpu-burst-config"
SYSTEM_KEY: Final = "system-config"
HOST_APPLICATION_KEY: Final = "host-application-config"
COLOCATION_KEY: Final = "colocation-config"


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


class _Expression(msgspec.Struct):
    key: str = ""
    operator: str = ""
    values: list[str] = []


class _Selector(msgspec.Struct):
    matchLabels: dict[str, str] = {}
    matchExpressions: list[_Expression] = []


_PROFILE = [("name", str), ("nodeSelector", _Selector)]


def _strategies(strategy: type[msgspec.Struct]) -> type[msgspec.Struct]:
    # The cluster's strategy, and those of some nodes with its fields inline.
    entry = msgspec.defstruct(f"Node{strategy.__name__}", [*_PROFILE, *_typed_fields(strategy)])
    fields = [("clusterStrategy", strategy), ("nodeStrategies", list[entry])]  # type: ignore[valid-type]
    return msgspec.defstruct(f"{strategy.__name__}Cfg", fields)


def _colocation() -> type[msgspec.Struct]:
    own = _typed_fields(ColocationStrategy)
    entry = msgspec.defstruct("NodeColocationCfg", [*_PROFILE, *own])
    return msgspec.defstruct("ColocationCfg", [*own, ("nodeConfigs", list[entry])])  # type: ignore[valid-type]


def _applications() -> type[msgspec.Struct]:
    entry = msgspec.defstruct("NodeHostApplicationCfg", [*_PROFILE, ("applications", list[HostApplication])])
    fields = [("applications", list[HostApplication]), ("nodeConfigs", list[entry])]  # type: ignore[valid-type]
    return msgspec.defstruct("HostApplicationCfg", fields)


def _typed_fields(of: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in msgspec.structs.fields(of)]


# Of the keys that are not here Koordinator's webhook too asks only that they are JSON objects.
_KEYS: Mapping[str, type[msgspec.Struct]] = {
    THRESHOLD_KEY: _strategies(ResourceThresholdStrategy),
    QOS_KEY: _strategies(ResourceQOSStrategy),
    CPU_BURST_KEY: _strategies(CPUBurstStrategy),
    SYSTEM_KEY: _strategies(SystemStrategy),
    HOST_APPLICATION_KEY: _applications(),
    COLOCATION_KEY: _colocation(),
}


class _Spec(msgspec.Struct):
    resourceUsedThresholdWithBE: ResourceThresholdStrategy
    resourceQOSStrategy: ResourceQOSStrategy
    cpuBurstStrategy: CPUBurstStrategy
    systemStrategy: SystemStrategy
    extensions: dict[str, Any]
    hostApplications: list[HostApplication]


def decode_config(text: str, key: str) -> dict[str, Any]:
    """Return the value of a key of the ConfigMap, its fields named as Koordinator's types name them.

    Raises: ConfigError: not JSON, or not an object.
    """
    config = decode_object(text, key)
    shape = _KEYS.get(key)
    return named(config, shape) if shape else config


def named_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a NodeSLO's spec with its fields named as Koordinator's types name them."""
    found: dict[str, Any] = named(spec, _Spec)
    return found


def unknown_in_config(data: Mapping[str, str]) -> tuple[UnknownField, ...]:
    """Return the fields of the ConfigMap that nothing reads. A key that is no JSON object has none."""
    found: list[UnknownField] = []
    for key, text in data.items():
        shape = _KEYS.get(key)
        if shape is None:
            continue
        try:
            found += unknown_fields(msgspec.json.decode(text), shape, key)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue  # an error elsewhere
    return tuple(found)


def unknown_in_nodeslo(raw: bytes | msgspec.Raw) -> tuple[UnknownField, ...]:
    """Return the fields of a NodeSLO's spec that nothing reads."""
    try:
        nodeslo = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ()  # an error elsewhere
    spec = nodeslo.get("spec") if isinstance(nodeslo, dict) else None
    return tuple(unknown_fields(spec, _Spec, "spec")) if isinstance(spec, dict) else ()
