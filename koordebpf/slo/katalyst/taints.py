"""The taints that Katalyst's conditions stand for: of the Node, and of the CustomNodeResource.

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

_RECLAIMED = "reclaimed_cores"  # the only QoS level whose pods the CustomNodeResource's taints are for

Taint = tuple[str, str]  # key and effect
CnrTaint = tuple[str, str, str]  # key, effect and QoS level


def taints_of(condition: str, effects: Collection[str]) -> list[Taint]:
    """Return the taints of a condition; an effect that Kubernetes does not know is none, nor is a name.

    >>> taints_of("MemoryPressure", ("NoSchedule", "Sometimes")), taints_of("no name", ("NoSchedule",))
    ([('node.katalyst.kubewharf.io/MemoryPressure', 'NoSchedule')], [])
    """
    if not _NAME.fullmatch(condition):
        return []
    return [(f"{TAINT_PREFIX}{condition}", effect) for effect in EFFECTS if effect in effects]


def cnr_taints_of(condition: str, effects: Collection[str]) -> list[CnrTaint]:
    """Return the taints of the CustomNodeResource of a condition, whose effects are written `reclaimed_cores/<effect>`.

    Those of another QoS level are none.

    >>> cnr_taints_of("Cpu", ("reclaimed_cores/NoSchedule", "shared_cores/NoSchedule", "NoExecute"))
    [('node.katalyst.kubewharf.io/Cpu', 'NoSchedule', 'reclaimed_cores')]
    """
    prefix = f"{_RECLAIMED}/"
    plain = [each.removeprefix(prefix) for each in effects if each.startswith(prefix)]
    return [(key, effect, _RECLAIMED) for key, effect in taints_of(condition, plain)]
