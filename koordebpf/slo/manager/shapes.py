"""The shape of each key of `slo-controller-config` and of a NodeSLO's spec, by which fields are found and named.

Source: koordinator apis/configuration/slo_controller_config.go, apis/slo/v1alpha1/nodeslo_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.slo.manager.colocation import ColocationStrategy
from koordebpf.slo.manager.field_names import UnknownField, named, unknown_fields
from koordebpf.slo.manager.keys import (
    COLOCATION_KEY,
    CPU_BURST_KEY,
    HOST_APPLICATION_KEY,
    QOS_KEY,
    SYSTEM_KEY,
    THRESHOLD_KEY,
)
from koordebpf.slo.overlay import decode_object
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.slo.strategies.host_applications import HostApplication
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.system import SystemStrategy


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
    entry = msgspec.defstruct(f"Node{strategy.__name__}", [*_PROFILE, *_fields(strategy)])
    fields = [("clusterStrategy", strategy), ("nodeStrategies", list[entry])]  # type: ignore[valid-type]
    return msgspec.defstruct(f"{strategy.__name__}Cfg", fields)


def _colocation() -> type[msgspec.Struct]:
    own = _fields(ColocationStrategy)
    entry = msgspec.defstruct("NodeColocationCfg", [*_PROFILE, *own])
    return msgspec.defstruct("ColocationCfg", [*own, ("nodeConfigs", list[entry])])  # type: ignore[valid-type]


def _applications() -> type[msgspec.Struct]:
    entry = msgspec.defstruct("NodeHostApplicationCfg", [*_PROFILE, ("applications", list[HostApplication])])
    fields = [("applications", list[HostApplication]), ("nodeConfigs", list[entry])]  # type: ignore[valid-type]
    return msgspec.defstruct("HostApplicationCfg", fields)


def _fields(of: type[msgspec.Struct]) -> list[tuple[str, Any]]:
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
