"""Every feature that evicts, in the order in which they are judged."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.policy.evict.cpu_features import CPU_FEATURES
from koordebpf.policy.evict.features import MEMORY_FEATURES
from koordebpf.state.amount import Resource

FEATURES = (*MEMORY_FEATURES, *CPU_FEATURES)
RESOURCE_OF: dict[str, Resource] = {feature.name: feature.relief.resource for feature in FEATURES}


def are_on(feature_gates: Mapping[str, bool], resource: Resource) -> bool:
    """Tell whether the gate of any feature that judges this resource is on."""
    return any(feature_gates.get(name, False) for name, each in RESOURCE_OF.items() if each == resource)
