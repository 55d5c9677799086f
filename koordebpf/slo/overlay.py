"""Threshold strategies laid over one another: only what is written replaces what lies below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

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
        # The path stays the key: what is in force of it is looked up by that. The place in it is in the rule.
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
