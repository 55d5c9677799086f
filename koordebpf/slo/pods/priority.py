"""Koordinator's priority bands.

Source: koordinator apis/extension/priority.go, priority_utils.go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

# pkg/apis/scheduling SystemCriticalPriority: system-cluster-critical, and system-node-critical 1,000 above.
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
PRIORITY_CLASS_LABEL = "koordinator.sh/priority-class"


class PriorityBand(msgspec.Struct, frozen=True):
    """One band of spec.priority, both ends included; `default` stands for a pod of the band without a value."""

    name: str
    lowest: int
    highest: int
    default: int


BANDS = (
    PriorityBand("koord-prod", 9000, 9999, 9500),
    PriorityBand("koord-mid", 7000, 7999, 7500),
    PriorityBand("koord-batch", 5000, 5999, 5500),
    PriorityBand("koord-free", 3000, 3999, 3500),
)
_BY_NAME = {band.name: band for band in BANDS}


def koord_priority(labels: Mapping[str, str] | None, priority: int | None, koord_qos: str = "") -> str:
    """Return the band's name: by label, else by spec.priority, else by the defaulted QoS class; "" for none.

    A label that names no band ends the search among label and value, as in Koordinator. With `koord_qos` empty there is
    no default.
    """
    label = labels.get(PRIORITY_CLASS_LABEL) if labels else None
    if label is not None:
        name = label if label in _BY_NAME else ""
    else:
        name = next((b.name for b in BANDS if priority is not None and b.lowest <= priority <= b.highest), "")
    if name or not koord_qos:
        return name
    return "koord-batch" if koord_qos == "BE" else "koord-prod"


def priority_or_default(labels: Mapping[str, str] | None, priority: int | None, koord_qos: str) -> int:
    """Return spec.priority, or the band's default where it is absent or 0; 0 where the pod has no band.

    Koordinator reads the API server's 0 as "not set" here. BEMemoryEvict does not use this value: it sorts by
    spec.priority itself.
    """
    if priority:
        return priority
    band = _BY_NAME.get(koord_priority(labels, priority, koord_qos))
    return band.default if band else 0
