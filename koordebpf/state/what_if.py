"""A frame under other settings: the same moment, judged by another NodeSLO, other values in it, or other gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.manager.shapes import nearest
from koordebpf.slo.nodeslo import STRATEGY_KEY, parse_nodeslo
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.build import strategy_of_frame
from koordebpf.state.view import Frame

_ON_UNSAID = frozenset({"BECPUSuppress"})  # gates that are on where a frame does not name them
_FIELDS = ResourceThresholdStrategy.__struct_fields__


class Setting(msgspec.Struct, frozen=True):
    """One value that differs between two sides. None: it is not set there."""

    name: str
    before: bool | int | str | None
    after: bool | int | str | None


def with_nodeslo(frame: Frame, nodeslo: msgspec.Raw) -> Frame:
    """Return the frame with this NodeSLO in the place of its own, and of its ConfigMap.

    Raises: ConfigError: a value in it has the wrong type.
    """
    parse_nodeslo(nodeslo)
    return msgspec.structs.replace(frame, nodeSLO=nodeslo, sloControllerConfig=None, strategyInForce=msgspec.UNSET)


def with_configmap(frame: Frame, data: Mapping[str, str]) -> Frame:
    """Return the frame with this ConfigMap slo-controller-config in the place of its own, and of its NodeSLO.

    Raises: ConfigError: a value in it has the wrong type.
    """
    other = msgspec.structs.replace(
        frame, nodeSLO=msgspec.UNSET, sloControllerConfig=dict(data), strategyInForce=msgspec.UNSET
    )
    strategy_of_frame(other)
    return other


def with_fields(frame: Frame, written: Mapping[str, Any]) -> Frame:
    """Return the frame with these fields of resourceUsedThresholdWithBE set; None leaves Koordinator's default.

    What the frame's NodeSLO or ConfigMap says of the others stays in force.

    Raises: ConfigError: a value has the wrong type, or what is effective now cannot be used.
    """
    strategy = strategy_of_frame(frame) or ResourceThresholdStrategy()
    spec = {**msgspec.to_builtins(strategy), **written}
    return with_nodeslo(frame, msgspec.Raw(msgspec.json.encode({"spec": {STRATEGY_KEY: spec}})))


def with_gates(frame: Frame, gates: Mapping[str, bool]) -> Frame:
    """Return the frame with these feature gates; those that are not named stay as they are."""
    return msgspec.structs.replace(frame, featureGates={**frame.featureGates, **gates})


def parse_field(entry: str) -> tuple[str, Any]:
    """Return field and value of `resourceUsedThresholdWithBE.FIELD=VALUE`; the value is JSON, or plain text.

    Raises: ConfigError: no such field, or no value.
    """
    name, has_value, text = entry.partition("=")
    strategy, _, field = name.strip().rpartition(".")
    if strategy.removeprefix("spec.") not in ("", STRATEGY_KEY) or field not in _FIELDS:
        near = nearest(field, _FIELDS)
        hint = f"; did you mean {near}?" if near else f", as memoryEvictThresholdPercent: it has {', '.join(_FIELDS)}"
        raise ConfigError("--set", name, f"must be a field of {STRATEGY_KEY}{hint}")
    if not has_value:
        raise ConfigError("--set", entry, "must be FIELD=VALUE; FIELD=null leaves the default")
    try:
        return field, msgspec.json.decode(text)
    except msgspec.DecodeError:
        return field, text


def changed_settings(before: Frame, after: Frame) -> tuple[Setting, ...]:
    """Return what two frames of the same moment do not agree on, by name.

    Raises: ConfigError: a NodeSLO or ConfigMap is unusable.
    """
    first, second = (
        msgspec.structs.asdict(strategy_of_frame(each) or ResourceThresholdStrategy()) for each in (before, after)
    )
    changed = [Setting(name, first[name], second[name]) for name in _FIELDS if first[name] != second[name]]
    for name in {**before.featureGates, **after.featureGates}:
        was, is_now = (each.featureGates.get(name, name in _ON_UNSAID) for each in (before, after))
        if was != is_now:
            changed.append(Setting(name, was, is_now))
    return tuple(changed)
