"""The manager's side: from the ConfigMap `slo-controller-config` to the spec of a node's NodeSLO.

Source: koordinator pkg/slo-controller/nodeslo/{resource_strategy,nodeslo_cm_event_handler}.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import overlaid
from koordebpf.slo.cpu_burst import DEFAULT_CPU_BURST
from koordebpf.slo.host_applications import host_applications
from koordebpf.slo.overlay import DEFAULT_STRATEGY, decode_object, member, overlay
from koordebpf.slo.resource_qos import ResourceQOSStrategy
from koordebpf.slo.selector import selects
from koordebpf.slo.strategy import ResourceThresholdStrategy
from koordebpf.slo.system_strategy import DEFAULT_SYSTEM

THRESHOLD_KEY = "resource-threshold-config"
BANDWIDTH_ANNOTATION = "node.koordinator.sh/network-bandwidth"
HOST_APPLICATION_KEY = "host-application-config"
SYSTEM_KEY = "system-config"
QOS_KEY = "resource-qos-config"


class StrategyKey(msgspec.Struct, frozen=True):
    """One key of the ConfigMap whose value holds a cluster strategy and strategies for some nodes."""

    field: str  # of the NodeSLO's spec
    default: msgspec.Struct
    lay_over: Callable[[Any, Mapping[str, Any], str], Any] = overlaid


# resource-qos-config has no defaults here: koordlet lays the classes' values under what the node gets.
STRATEGY_KEYS: Mapping[str, StrategyKey] = {
    THRESHOLD_KEY: StrategyKey("resourceUsedThresholdWithBE", DEFAULT_STRATEGY, overlay),
    QOS_KEY: StrategyKey("resourceQOSStrategy", ResourceQOSStrategy()),
    "cpu-burst-config": StrategyKey("cpuBurstStrategy", DEFAULT_CPU_BURST),
    SYSTEM_KEY: StrategyKey("systemStrategy", DEFAULT_SYSTEM),
}
# Key of the ConfigMap → field of the spec.
SPEC_FIELDS: Mapping[str, str] = {
    **{key: strategy.field for key, strategy in STRATEGY_KEYS.items()},
    HOST_APPLICATION_KEY: "hostApplications",
}


def render_spec(
    data: Mapping[str, str], labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the NodeSLO spec of a node with these labels and annotations, as it stands in the object.

    For each key: defaults, then clusterStrategy, then the first of nodeStrategies whose selector matches. Every entry
    is checked, also those that select other nodes. A key that is missing leaves the defaults.

    Raises: ConfigError: not JSON, or a value is not what it must be.
    """
    parts = {field: render_part(data, key, labels, annotations) for key, field in SPEC_FIELDS.items()}
    return {field: part for field, part in parts.items() if part is not None}


def render_part(
    data: Mapping[str, str], key: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Any:
    """Return the part of the spec that one key of `SPEC_FIELDS` makes; None where there is none.

    Raises: ConfigError: as `render_spec`, of this key alone.
    """
    if key == HOST_APPLICATION_KEY:
        return _applications_for(data, labels) or None
    part = msgspec.to_builtins(_strategy_for(data, key, labels))
    bandwidth = (annotations or {}).get(BANDWIDTH_ANNOTATION)
    if key == SYSTEM_KEY and bandwidth is not None:
        part["totalNetworkBandwidth"] = bandwidth
    return part


def strategy_of_configmap(data: Mapping[str, str], labels: Mapping[str, str]) -> ResourceThresholdStrategy:
    """Return the threshold strategy alone, for a node with these labels.

    Raises: ConfigError: not JSON, or a value has the wrong type.
    """
    strategy: ResourceThresholdStrategy = _strategy_for(data, THRESHOLD_KEY, labels)
    return strategy


def strategies_of(config: Mapping[str, Any], key: str) -> list[tuple[str, Any, Mapping[str, Any] | None]]:
    """Return path, strategy and selector of each strategy that a key of `STRATEGY_KEYS` makes, the cluster's first.

    Raises: ConfigError: a value is not what it must be.
    """
    of = STRATEGY_KEYS[key]
    cluster = of.lay_over(of.default, member(config, "clusterStrategy", key) or {}, f"{key}.clusterStrategy")
    made: list[tuple[str, Any, Mapping[str, Any] | None]] = [(f"{key}.clusterStrategy", cluster, None)]
    for index, entry in enumerate(entries_of(config, "nodeStrategies", key)):
        path = f"{key}.nodeStrategies[{index}]"
        made.append((path, of.lay_over(cluster, entry, path), member(entry, "nodeSelector", path)))
    return made


def entries_of(config: Mapping[str, Any], name: str, path: str) -> list[dict[str, Any]]:
    """Return the array of objects at `name`; an absent one is empty.

    Raises: ConfigError: it is something else.
    """
    value = config.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{path}.{name}", value, "must be an array")
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}.{name}[{index}]", entry, "must be an object")
    return value


def _strategy_for(data: Mapping[str, str], key: str, labels: Mapping[str, str]) -> Any:
    if key not in data:
        return STRATEGY_KEYS[key].default
    (_, cluster, _), *others = strategies_of(decode_object(data[key], key), key)
    chosen = None
    for path, merged, selector in others:
        if selects(selector, labels, f"{path}.nodeSelector") and chosen is None:
            chosen = merged
    return cluster if chosen is None else chosen


def _applications_for(data: Mapping[str, str], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    # Not merged: the first entry that selects the node replaces the cluster's list.
    key = HOST_APPLICATION_KEY
    if key not in data:
        return []
    config = decode_object(data[key], key)
    chosen = host_applications(config.get("applications") or [], f"{key}.applications")
    is_chosen = False
    for index, entry in enumerate(entries_of(config, "nodeConfigs", key)):
        path = f"{key}.nodeConfigs[{index}]"
        own = host_applications(entry.get("applications") or [], f"{path}.applications")
        if selects(member(entry, "nodeSelector", path), labels, f"{path}.nodeSelector") and not is_chosen:
            chosen, is_chosen = own, True
    return [msgspec.to_builtins(application) for application in chosen]
