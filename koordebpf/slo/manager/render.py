"""The manager's side: from the ConfigMap `slo-controller-config` to the spec of a node's NodeSLO.

Source: koordinator pkg/slo-controller/nodeslo/{resource_strategy,nodeslo_cm_event_handler}.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.quantity import quantity_bytes
from koordebpf.slo.convert import overlaid
from koordebpf.slo.manager.keys import CPU_BURST_KEY, HOST_APPLICATION_KEY, QOS_KEY, SYSTEM_KEY, THRESHOLD_KEY
from koordebpf.slo.manager.shapes import decode_config
from koordebpf.slo.overlay import DEFAULT_STRATEGY, entries_of, member, overlay
from koordebpf.slo.selector import selects
from koordebpf.slo.strategies.cpu_burst import DEFAULT_CPU_BURST
from koordebpf.slo.strategies.host_applications import host_applications
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.system import DEFAULT_SYSTEM, overlaid_system

BANDWIDTH_ANNOTATION = "node.koordinator.sh/network-bandwidth"


class StrategyKey(msgspec.Struct, frozen=True):
    """One key of the ConfigMap whose value holds a cluster strategy and strategies for some nodes."""

    field: str  # of the NodeSLO's spec
    default: msgspec.Struct
    lay_over: Callable[[Any, Mapping[str, Any], str], Any] = overlaid


# resource-qos-config has no defaults here: koordlet lays the classes' values under what the node gets.
STRATEGY_KEYS: Mapping[str, StrategyKey] = {
    THRESHOLD_KEY: StrategyKey("resourceUsedThresholdWithBE", DEFAULT_STRATEGY, overlay),
    QOS_KEY: StrategyKey("resourceQOSStrategy", ResourceQOSStrategy()),
    CPU_BURST_KEY: StrategyKey("cpuBurstStrategy", DEFAULT_CPU_BURST),
    SYSTEM_KEY: StrategyKey("systemStrategy", DEFAULT_SYSTEM, overlaid_system),
}
# Key of the ConfigMap → field of the spec.
SPEC_FIELDS: Mapping[str, str] = {
    **{key: strategy.field for key, strategy in STRATEGY_KEYS.items()},
    HOST_APPLICATION_KEY: "hostApplications",
}


class Entry(msgspec.Struct, frozen=True):
    """A strategy for some nodes, laid over the cluster's; or why it is left out."""

    path: str
    selector: Mapping[str, Any] | None
    value: Any = None
    error: ConfigError | None = None


class Rendered(msgspec.Struct, frozen=True):
    """One part of a node's spec.

    `left_out` has what is unusable and concerns some nodes alone: an entry, or the node's annotation.
    `is_own_left_out`: one of them is this node's.
    """

    value: Any
    left_out: tuple[ConfigError, ...] = ()
    is_own_left_out: bool = False


def render_spec(
    data: Mapping[str, str], labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the NodeSLO spec of a node with these labels and annotations, as it stands in the object.

    For each key: defaults, then clusterStrategy, then the first of nodeStrategies whose selector matches. An entry that
    is unusable is left out: `render_part` says which. A key that is missing leaves the defaults.

    Raises: ConfigError: not JSON, or a value of the cluster's strategy is not what it must be.
    """
    parts = {field: render_part(data, key, labels, annotations).value for key, field in SPEC_FIELDS.items()}
    return {field: part for field, part in parts.items() if part is not None}


def render_part(
    data: Mapping[str, str], key: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None
) -> Rendered:
    """Return the part of the spec that one key of `SPEC_FIELDS` makes; its value is None where there is none.

    Raises: ConfigError: as `render_spec`, of this key alone.
    """
    made = _made(data, key, labels)
    if key == HOST_APPLICATION_KEY:
        value = [msgspec.to_builtins(application) for application in made.value]
        return msgspec.structs.replace(made, value=value or None)
    part = msgspec.to_builtins(made.value)
    left_out, is_own = made.left_out, made.is_own_left_out
    bandwidth = (annotations or {}).get(BANDWIDTH_ANNOTATION)
    if key == SYSTEM_KEY and bandwidth is not None:
        try:
            quantity_bytes(bandwidth, f"metadata.annotations[{BANDWIDTH_ANNOTATION}]")
            part["totalNetworkBandwidth"] = bandwidth
        except ConfigError as error:
            left_out, is_own = (*left_out, error), True
    return Rendered(part, left_out, is_own)


def strategy_of_configmap(data: Mapping[str, str], labels: Mapping[str, str]) -> ResourceThresholdStrategy:
    """Return the threshold strategy alone, for a node with these labels.

    Raises: ConfigError: not JSON, or a value of the cluster's strategy has the wrong type.
    """
    strategy: ResourceThresholdStrategy = _made(data, THRESHOLD_KEY, labels).value
    return strategy


def strategies_of(config: Mapping[str, Any], key: str) -> tuple[Any, tuple[Entry, ...]]:
    """Return the cluster's strategy of a key of `STRATEGY_KEYS`, and the entries for some nodes.

    Raises: ConfigError: a value of the cluster's strategy is not what it must be, or there is no list of entries.
    """
    of = STRATEGY_KEYS[key]
    cluster = of.lay_over(of.default, member(config, "clusterStrategy", key) or {}, f"{key}.clusterStrategy")
    return cluster, strategy_entries(
        config, "nodeStrategies", key, lambda entry, path: of.lay_over(cluster, entry, path)
    )


# The value of a key for a node with these labels, before it is put into an object's words.
def _made(data: Mapping[str, str], key: str, labels: Mapping[str, str]) -> Rendered:
    if key not in data:
        return Rendered(() if key == HOST_APPLICATION_KEY else STRATEGY_KEYS[key].default)
    config = decode_config(data[key], key)
    return chosen(*(_applications_of(config) if key == HOST_APPLICATION_KEY else strategies_of(config, key)), labels)


def _applications_of(config: Mapping[str, Any]) -> tuple[Any, tuple[Entry, ...]]:
    key = HOST_APPLICATION_KEY
    cluster = host_applications(config.get("applications") or [], f"{key}.applications")

    def own(entry: Mapping[str, Any], path: str) -> Any:
        return host_applications(entry.get("applications") or [], f"{path}.applications")

    return cluster, strategy_entries(config, "nodeConfigs", key, own)


def strategy_entries(
    config: Mapping[str, Any], field: str, key: str, value_of: Callable[[Mapping[str, Any], str], Any]
) -> tuple[Entry, ...]:
    """Return the entries for some nodes in the list `field` of a key, each with its value or what is wrong with it.

    Raises: ConfigError: there is no list.
    """
    found: list[Entry] = []
    for index, entry in enumerate(entries_of(config, field, key)):
        path, selector = f"{key}.{field}[{index}]", None
        try:
            if not isinstance(entry, dict):
                raise ConfigError(path, entry, "must be an object")
            selector = member(entry, "nodeSelector", path)
            selects(selector, {}, f"{path}.nodeSelector")
        except ConfigError as error:
            found.append(Entry(path, None, error=error))
            continue
        try:
            found.append(Entry(path, selector, value_of(entry, path)))
        except ConfigError as error:
            found.append(Entry(path, selector, error=error))
    return tuple(found)


def chosen(cluster: Any, entries: tuple[Entry, ...], labels: Mapping[str, str]) -> Rendered:
    """Return the value of the first entry that selects a node with these labels, else the cluster's."""
    left_out = tuple(entry.error for entry in entries if entry.error is not None)
    is_own_left_out = False
    for entry in entries:
        if not selects(entry.selector, labels, f"{entry.path}.nodeSelector"):
            continue
        if entry.error is None:
            return Rendered(entry.value, left_out, is_own_left_out)
        is_own_left_out = True
    return Rendered(cluster, left_out, is_own_left_out)
