"""The whole spec of a NodeSLO as one value, each strategy laid over koordlet's defaults.

Source: apis/slo/v1alpha1/nodeslo_types.go; pkg/koordlet/statesinformer/impl/states_nodeslo.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import DEFAULT_STRATEGY, as_json, decode_object, member, overlaid, overlay
from koordebpf.slo.manager.effective import (
    EffectiveKey,
    bandwidth_problem,
    effective_key,
    effective_part,
    off_sentence,
    selected,
)
from koordebpf.slo.manager.render import SPEC_FIELDS, default_of
from koordebpf.slo.manager.shapes import THRESHOLD_KEY, named_spec
from koordebpf.slo.manager.switches import on_in
from koordebpf.slo.strategies.cpu_burst import DEFAULT_CPU_BURST, CPUBurstStrategy
from koordebpf.slo.strategies.host_applications import HostApplication, host_applications
from koordebpf.slo.strategies.resource_qos import DEFAULT_RESOURCE_QOS, ResourceQOSStrategy, without_disabled
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.system import DEFAULT_SYSTEM, SystemStrategy, overlaid_system


class NodeSLOSpec(msgspec.Struct, frozen=True):
    """What is effective on a node. No part is absent; a part's fields may be."""

    resourceUsedThresholdWithBE: ResourceThresholdStrategy = DEFAULT_STRATEGY
    resourceQOSStrategy: ResourceQOSStrategy = without_disabled(DEFAULT_RESOURCE_QOS)
    cpuBurstStrategy: CPUBurstStrategy = DEFAULT_CPU_BURST
    systemStrategy: SystemStrategy = DEFAULT_SYSTEM
    extensions: dict[str, Any] = {}
    hostApplications: tuple[HostApplication, ...] = ()


def _object(written: Any, path: str) -> dict[str, Any]:
    if not isinstance(written, dict):
        raise ConfigError(path, written, "must be an object")
    return written


# Field of the spec → its value from what is written there.
_PARTS: Mapping[str, Callable[[Any, str], Any]] = {
    "resourceUsedThresholdWithBE": lambda written, path: overlay(DEFAULT_STRATEGY, _object(written, path), path),
    "resourceQOSStrategy": lambda written, path: without_disabled(overlaid(DEFAULT_RESOURCE_QOS, written, path)),
    "cpuBurstStrategy": lambda written, path: overlaid(DEFAULT_CPU_BURST, written, path),
    "systemStrategy": lambda written, path: overlaid_system(DEFAULT_SYSTEM, written, path),
    "extensions": _object,
    "hostApplications": host_applications,
}


class LeftOut(ConfigError):
    """What of the ConfigMap is unusable and concerns some nodes alone; `message`: what became of it."""

    def __init__(self, error: ConfigError, message: str) -> None:
        super().__init__(error.path, error.value, error.rule)
        self.message = message

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.message}"


def spec_of_configmap(
    data: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    last: NodeSLOSpec | None = None,
) -> tuple[NodeSLOSpec, tuple[ConfigError, ...], tuple[LeftOut, ...]]:
    """Return the spec that the ConfigMap makes for a node, what is wrong with it, and what is left out.

    Key by key as `parse_spec`. Left out are values outside their range, and entries for some nodes that are unusable:
    the node of such an entry keeps what it had in `last`; at first it is off. What is switched off is off.
    """
    parts: dict[str, Any] = {}
    problems: list[ConfigError] = []
    left_out: list[LeftOut] = []
    for key, name in SPEC_FIELDS.items():
        had = None if last is None else getattr(last, name)
        try:
            of = effective_key(key, data[key]) if key in data else EffectiveKey(key, "", default_of(key))
            parts[name], errors, left = _part_of_configmap(of, labels, annotations, had)
        except Exception as failure:  # an error of one key must not keep an agent from switching off another
            problems.append(ConfigError(key, type(failure).__name__, f"cannot be used: {failure}"))
            if had is not None:
                parts[name] = had
            continue
        problems += errors
        left_out += left
    if (error := bandwidth_problem(annotations)) is not None:
        left_out.append(LeftOut(error, "it is left out" if last is None else "the last good one stays"))
        if last is not None:
            had = last.systemStrategy.totalNetworkBandwidth
            parts["systemStrategy"] = msgspec.structs.replace(parts["systemStrategy"], totalNetworkBandwidth=had)
    return NodeSLOSpec(**parts), tuple(problems), tuple(left_out)


# The part of a spec that a key makes, what makes it unusable as a whole, and what is left out.
def _part_of_configmap(
    of: EffectiveKey, labels: Mapping[str, str], annotations: Mapping[str, str] | None, had: Any
) -> tuple[Any, list[ConfigError], list[LeftOut]]:
    name, found = SPEC_FIELDS[of.key], selected(of, labels)
    has = as_json(had) if found.is_held else None
    off = on_in(has, found.off) if found.is_held else ()
    kept = "the node is off" if had is None else f"the node keeps what it had{off_sentence(off)}"
    problems: list[ConfigError] = []
    left_out: list[LeftOut] = []
    if of.is_unparsed:
        stays = f"the last good strategy stays in force{off_sentence(off)}"
        problems += [LeftOut(error, stays) for error in of.errors] if off else of.errors
    else:
        own = [id(error) for error in found.errors if found.is_held]
        errors = (*of.errors, *(error for entry in of.entries for error in entry.errors))
        left_out += [LeftOut(error, kept if id(error) in own else "it is left out") for error in errors]
    if had is not None and found.is_held and not off:
        return had, problems, left_out
    part = effective_part(of, of.key, labels, annotations, has)
    return _PARTS[name]([] if part is None else part, of.key), problems, left_out


def strategy_of_configmap(data: Mapping[str, str], labels: Mapping[str, str]) -> ResourceThresholdStrategy:
    """Return the threshold strategy alone, for a node with these labels of which nothing else is known.

    Raises: ConfigError: not JSON, or a value of the cluster's strategy has the wrong type.
    """
    data = {key: text for key, text in data.items() if key == THRESHOLD_KEY}
    spec, problems, _ = spec_of_configmap(data, labels)
    if problems:
        raise problems[0]
    return spec.resourceUsedThresholdWithBE


def parse_spec(
    raw: bytes | msgspec.Raw, last: NodeSLOSpec | None = None
) -> tuple[NodeSLOSpec, tuple[ConfigError, ...]]:
    """Return the spec of a NodeSLO object, and what is wrong with it.

    Each part stands for itself: one that is unusable stays as it is in `last` (at first: the default), and the others
    are taken over. Koordlet would skip what a single feature cannot use; here the error reports it at once.

    Raises: ConfigError: not a JSON object, or `spec` is none.
    """
    written = named_spec(member(decode_object(raw, "NodeSLO"), "spec", "") or {})
    parts: dict[str, Any] = {}
    problems: list[ConfigError] = []
    for name, parse in _PARTS.items():
        if written.get(name) is None:
            continue
        try:
            parts[name] = parse(written[name], f"spec.{name}")
        except ConfigError as error:
            problems.append(error)
            if last is not None:
                parts[name] = getattr(last, name)
    return NodeSLOSpec(**parts), tuple(problems)
