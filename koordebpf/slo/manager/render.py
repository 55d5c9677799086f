"""What one text of each key of the ConfigMap `slo-controller-config` says: a strategy, and those for some nodes.

Source: koordinator pkg/slo-controller/nodeslo/{resource_strategy,nodeslo_cm_event_handler}.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import DEFAULT_STRATEGY, entries_of, member, overlaid, overlay
from koordebpf.slo.manager import shapes
from koordebpf.slo.manager.rules import broken_network_rules, broken_threshold_rules
from koordebpf.slo.manager.shapes import CPU_BURST_KEY, HOST_APPLICATION_KEY, QOS_KEY, SYSTEM_KEY, THRESHOLD_KEY
from koordebpf.slo.selector import selects
from koordebpf.slo.strategies.cpu_burst import DEFAULT_CPU_BURST
from koordebpf.slo.strategies.host_applications import host_applications
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.system import DEFAULT_SYSTEM, overlaid_system


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
    """A strategy for some nodes, laid over the cluster's; or what is wrong with it.

    Attributes:
        selector: None: it is absent or unusable.
        written: the entry as it stands in the text.
        is_selector_usable: else it is not known which nodes are meant.
    """

    path: str
    selector: Mapping[str, Any] | None
    value: Any = None
    errors: tuple[ConfigError, ...] = ()
    written: Any = None
    is_selector_usable: bool = True

    def __str__(self) -> str:
        name = self.written.get("name") if isinstance(self.written, dict) else None
        return f"{self.path} ({name})" if name else self.path


Decoded = tuple[Any, tuple[Entry, ...]]  # of a key: the cluster's value, and the entries for some nodes


def decoded(config: Mapping[str, Any], key: str) -> Decoded:
    """Return what a key of `SPEC_FIELDS` says.

    Raises: ConfigError: as `strategies_of`.
    """
    return _applications_of(config) if key == HOST_APPLICATION_KEY else strategies_of(config, key)


def entries_field(key: str) -> str:
    """Return the field of a key that has its entries for some nodes."""
    return "nodeConfigs" if key in (shapes.COLOCATION_KEY, HOST_APPLICATION_KEY) else "nodeStrategies"


def default_of(key: str) -> Any:
    """Return the value of a key of `SPEC_FIELDS` that says nothing, in which everything is off."""
    return () if key == HOST_APPLICATION_KEY else STRATEGY_KEYS[key].default


def strategies_of(config: Mapping[str, Any], key: str) -> Decoded:
    """Return the cluster's strategy of a key of `STRATEGY_KEYS`, and the entries for some nodes.

    Raises: ConfigError: a value of the cluster's strategy is not what it must be, or there is no list of entries.
    """
    of = STRATEGY_KEYS[key]
    cluster = of.lay_over(of.default, member(config, "clusterStrategy", key) or {}, f"{key}.clusterStrategy")

    def own(entry: Mapping[str, Any], path: str) -> Any:
        return of.lay_over(cluster, entry, path)

    return cluster, strategy_entries(config, "nodeStrategies", key, own)


def broken_rules(written: Mapping[str, Any], key: str, path: str) -> tuple[ConfigError, ...]:
    """Return the rules that a strategy breaks by what stands in it; what it inherits is another's.

    Raises: ConfigError: a value has the wrong type.
    """
    match key:
        case shapes.THRESHOLD_KEY:
            broken = broken_threshold_rules(overlay(ResourceThresholdStrategy(), written, path), path)
        case shapes.QOS_KEY:
            broken = broken_network_rules(overlaid(ResourceQOSStrategy(), written, path), None, path)
        case _:
            return ()
    return tuple(ConfigError(*each) for each in broken)


def _applications_of(config: Mapping[str, Any]) -> Decoded:
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
            found.append(Entry(path, None, None, (error,), entry, is_selector_usable=False))
            continue
        try:
            value, errors = value_of(entry, path), broken_rules(entry, key, path)
        except ConfigError as error:
            value, errors = None, (error,)
        found.append(Entry(path, selector, None if errors else value, errors, entry))
    return tuple(found)
