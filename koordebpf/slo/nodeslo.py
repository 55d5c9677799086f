"""The strategy in force on a node: from its NodeSLO object, or from the ConfigMap that NodeSLO objects are made of.

Types are checked one by one. Ranges are not judged here: koordlet leaves them to the feature that uses the value, which
then skips with its own text (`threshold_rules`) while the others continue.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.slo.manager.shapes import named_spec
from koordebpf.slo.overlay import DEFAULT_STRATEGY, decode_object, member, overlay
from koordebpf.slo.spec import strategy_of_configmap
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

STRATEGY_KEY = "resourceUsedThresholdWithBE"


def parse_nodeslo(raw: bytes | msgspec.Raw) -> ResourceThresholdStrategy:
    """Return spec.resourceUsedThresholdWithBE laid over Koordinator's defaults.

    An absent spec or strategy leaves the defaults, in which `enable` is false.

    Source: koordinator pkg/koordlet/statesinformer/impl/states_nodeslo.go.
    Raises: ConfigError: a value has the wrong type; the path starts inside the object, `spec.…`.
    """
    spec = named_spec(member(decode_object(raw, "NodeSLO"), "spec", "") or {})
    written = member(spec, STRATEGY_KEY, "spec")
    return overlay(DEFAULT_STRATEGY, written or {}, f"spec.{STRATEGY_KEY}")


def strategy_for(
    nodeslo_raw: bytes | msgspec.Raw | None,
    configmap: Mapping[str, str] | None,
    node_labels: Mapping[str, str] | None,
) -> ResourceThresholdStrategy | None:
    """Return the strategy in force: the NodeSLO's, else the ConfigMap's for these labels, None where neither is known.

    The NodeSLO takes precedence: koordlet reads it; the ConfigMap is its source for a node without manager.

    Raises: ConfigError: a value has the wrong type.
    """
    if nodeslo_raw is not None:
        return parse_nodeslo(nodeslo_raw)
    if configmap is not None:
        return strategy_of_configmap(configmap, node_labels or {})
    return None
