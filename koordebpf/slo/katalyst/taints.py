"""The taints that Katalyst's node conditions stand for.

Source: katalyst-core pkg/agent/evictionmanager/conditions.go.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

TAINT_PREFIX: Final = "node.katalyst.kubewharf.io/"
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")

# Of a label key without its prefix. Source: k8s.io/apimachinery pkg/util/validation, IsQualifiedName.
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

Taint = tuple[str, str]  # key and effect


def taints_of(condition: str, effects: Collection[str]) -> list[Taint]:
    """Return the taints of a condition; an effect that Kubernetes does not know is none, nor is a name.

    >>> taints_of("MemoryPressure", ("NoSchedule", "Sometimes")), taints_of("no name", ("NoSchedule",))
    ([('node.katalyst.kubewharf.io/MemoryPressure', 'NoSchedule')], [])
    """
    if not _NAME.fullmatch(condition):
        return []
    return [(f"{TAINT_PREFIX}{condition}", effect) for effect in EFFECTS if effect in effects]
