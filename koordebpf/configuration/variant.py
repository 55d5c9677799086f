"""Other settings by their names in files, as what decides a round under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from koordebpf.configuration.file import API_VERSION, KIND, read_config
from koordebpf.configuration.schema import sections_of
from koordebpf.configuration.settings import ShadowSettings, with_values
from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.decision.what_if.variant import Variant
from koordebpf.errors import ConfigError
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.state.view import Frame
from koordebpf.state.what_if import parse_field

_FIELDS = ("eviction", "guards", "strategies")  # of the settings those that decide, but for what a NodeSLO says
_GATES = "featureGates"


def variant_of(name: str, settings: Mapping[str, Any], place: str) -> Variant:
    """Return a configuration in which these settings differ, each by its name.

    That is `FIELD` or `resourceUsedThresholdWithBE.FIELD` of the NodeSLO, `featureGates.NAME`, or the agent's own as in
    its configuration file, below `eviction`, `guards`, `strategies` or a strategy's own section.

    Args:
        name: of the configuration.
        settings: values by name, as a file has them.
        place: where they were written, for errors.

    Raises:  ConfigError: no such setting, or not its type.
    """
    fields: dict[str, Any] = {}
    document: dict[str, Any] = {}
    for path, value in settings.items():
        if path.partition(".")[0] in (*sections_of(_FIELDS), _GATES):
            _put(document, path.split("."), value)
        else:
            field, _ = parse_field(f"{path}=")
            fields[field] = value
    raw = msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, **document})
    given = read_config(place, raw)

    def change(was: TickSettings) -> TickSettings:
        sections = {each: with_values(getattr(was, each), given[each]) for each in _FIELDS if each in given}
        return replace(was, **sections) if sections else was

    return Variant(name, fields, given.get("feature_gates", {}), change)


def checked_variant(name: str, settings: Mapping[str, Any], place: str) -> Variant:
    """Return the same, tried on an empty node: a value of another type is an error now, not with the first round.

    Raises:  ConfigError: no such setting, or not its type.
    """
    variant = variant_of(name, settings, place)
    node = NodeMeasure(scope="machine", total_bytes=0, used_bytes=None)
    frame = Frame(schema="koordebpf.frame/v3", measured=Measured(now_ns=0, since_ns=0, node=node))
    facts = GuardFacts(now_ns=0, source="file", pods_synced_ns=None)
    try:
        variant.applied(TickFrame(frame=frame, settings=TickSettings(), guards=facts))
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.path}", error.value, error.rule) from error
    return variant


def _put(document: dict[str, Any], path: list[str], value: Any) -> None:
    *sections, name = path
    below = document
    for each in sections:
        below = below.setdefault(each, {})
        if not isinstance(below, dict):
            raise ConfigError(".".join(path), value, f"{each} has a value already")
    below[name] = value


def shadow_variants(settings: ShadowSettings) -> list[Variant]:
    """Return the configurations of shadow mode.

    Raises:  ConfigError: two have one name, or a setting is none or has another type.
    """
    names = [each.name for each in settings.configurations]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("shadow.configurations", name, "must be the name of one")
    return [
        checked_variant(each.name, each.settings, f"shadow.configurations.{each.name}")
        for each in settings.configurations
    ]
