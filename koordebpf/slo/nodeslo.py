"""The effective strategy of a node: from its NodeSLO object, or from the ConfigMap that NodeSLO objects are made of.

Types are checked one by one. Ranges are not judged here: koordlet leaves them to the feature that uses the value, which
then skips with its own text (`threshold_rules`) while the others continue. What is effective although it cannot be
meant so is named in sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from koordebpf.slo.convert import DEFAULT_STRATEGY, decode_object, member, overlay
from koordebpf.slo.manager.shapes import named_spec
from koordebpf.slo.manager.webhook import strategy_problems
from koordebpf.slo.spec import strategy_of_configmap
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy

# What any other word counts as, in koordlet and here.
_TAKEN_FOR: Mapping[str, str] = {"cpuSuppressPolicy": "cpuset", "cpuEvictPolicy": "evictByRealLimit"}
STRATEGY_KEY = "resourceUsedThresholdWithBE"


def strategy_doubts(strategy: ResourceThresholdStrategy, place: str) -> Iterator[str]:
    """Yield what the webhook would refuse, and a minimum of suppression that leaves nothing to suppress.

    Args:
        strategy: as merged.
        place: where it is from.
    """
    for problem in strategy_problems(strategy, place):
        word = _TAKEN_FOR.get(problem.path.rpartition(".")[2])
        yield f"{problem}; {word or 'it'} is in force all the same, as in koordlet"
    if strategy.cpuSuppressPolicy == "cpuIdle":
        yield f"{place}.cpuSuppressPolicy: Koordinator has no cpuIdle: it is suppress.policy of the agents' settings"
    threshold, least = strategy.cpuSuppressThresholdPercent, strategy.cpuSuppressMinPercent
    if threshold is not None and least is not None and least > threshold:
        yield (
            f"{place}.cpuSuppressMinPercent: {least}: must not be more than cpuSuppressThresholdPercent ({threshold}): "
            "best-effort pods are held to it whatever the others use"
        )


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
    """Return the effective strategy: the NodeSLO's, else the ConfigMap's for these labels, None where neither is known.

    The NodeSLO takes precedence: koordlet reads it; the ConfigMap is its source for a node without manager.

    Raises: ConfigError: a value has the wrong type.
    """
    if nodeslo_raw is not None:
        return parse_nodeslo(nodeslo_raw)
    if configmap is not None:
        return strategy_of_configmap(configmap, node_labels or {})
    return None
