"""The whole spec of a NodeSLO as one value, each strategy laid over koordlet's defaults.

Source: apis/slo/v1alpha1/nodeslo_types.go; pkg/koordlet/statesinformer/impl/states_nodeslo.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import overlaid
from koordebpf.slo.manager.render import SPEC_FIELDS, render_part
from koordebpf.slo.manager.shapes import named_spec
from koordebpf.slo.overlay import DEFAULT_STRATEGY, decode_object, member, overlay
from koordebpf.slo.strategies.cpu_burst import DEFAULT_CPU_BURST, CPUBurstStrategy
from koordebpf.slo.strategies.host_applications import HostApplication, host_applications
from koordebpf.slo.strategies.resource_qos import DEFAULT_RESOURCE_QOS, ResourceQOSStrategy, without_disabled
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.slo.strategies.system import DEFAULT_SYSTEM, SystemStrategy, overlaid_system


class NodeSLOSpec(msgspec.Struct, frozen=True):
    """What is in force on a node. No part is absent; a part's fields may be."""

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


def spec_of_configmap(
    data: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    last: NodeSLOSpec | None = None,
) -> tuple[NodeSLOSpec, tuple[ConfigError, ...], tuple[ConfigError, ...]]:
    """Return the spec that the ConfigMap makes for a node, what is wrong with it, and what is left out.

    Key by key as `parse_spec`. Left out are entries for some nodes alone that are unusable; the node of such an entry
    keeps what it had in `last`, at first it gets the next entry that selects it, or the cluster's strategy.
    """
    parts: dict[str, Any] = {}
    problems: list[ConfigError] = []
    left_out: list[ConfigError] = []
    for key, name in SPEC_FIELDS.items():
        try:
            made = render_part(data, key, labels, annotations)
            left_out += made.left_out
            if made.is_own_left_out and last is not None:
                parts[name] = getattr(last, name)
            elif made.value is not None:
                parts[name] = _PARTS[name](made.value, key)
        except ConfigError as error:
            problems.append(error)
            if last is not None:
                parts[name] = getattr(last, name)
    return NodeSLOSpec(**parts), tuple(problems), tuple(left_out)


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
