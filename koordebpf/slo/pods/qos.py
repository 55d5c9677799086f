"""QoS classes and priority bands: Koordinator's labels, and Kubernetes' own class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

import msgspec

# pkg/apis/scheduling SystemCriticalPriority: system-cluster-critical, and system-node-critical 1,000 above.
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
PRIORITY_CLASS_LABEL = "koordinator.sh/priority-class"
QOS_LABEL = "koordinator.sh/qosClass"
KOORD_QOS = frozenset({"LSE", "LSR", "LS", "BE", "SYSTEM"})
_DEFAULT_KOORD_QOS = {"Guaranteed": "LSR", "Burstable": "LS", "BestEffort": "BE"}
_QOS_RESOURCES = ("cpu", "memory")
_LATENCY_SENSITIVE = frozenset({"LSE", "LSR", "LS"})
Amounts = Mapping[str, Decimal]


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


def koord_qos(labels: Mapping[str, str] | None) -> str:
    """Return the class the label names, "" where it is absent or names none; `be` is not `BE`.

    Eviction and suppression go by this one.

    Source: koordinator apis/extension/qos.go, GetPodQoSClassRaw.
    """
    written = labels.get(QOS_LABEL, "") if labels else ""
    return written if written in KOORD_QOS else ""


def koord_qos_or_default(labels: Mapping[str, str] | None, kube_qos: str) -> str:
    """Return the label's class, or where it names none the one that stands for the Kubernetes class.

    Source: koordinator apis/extension/qos.go, GetPodQoSClassWithDefault.
    """
    return koord_qos(labels) or _DEFAULT_KOORD_QOS.get(kube_qos, "")


def is_latency_sensitive(koord_qos: str, kube_qos: str) -> bool:
    """Tell whether a pod is LSE, LSR or LS, by its label or else by the Kubernetes class that stands for one."""
    return koord_qos in _LATENCY_SENSITIVE or (not koord_qos and kube_qos != "BestEffort")


def kube_qos_of(containers: Iterable[tuple[Amounts, Amounts]]) -> str:
    """Return Guaranteed, Burstable or BestEffort from (requests, limits) of all containers, init containers included.

    A missing request counts as its limit: the API server writes it so, a Pod from a file has not been there.

    Source: k8s.io/kubernetes pkg/apis/core/v1/helper/qos, ComputePodQOS.
    """
    requests: dict[str, Decimal] = {}
    limits: dict[str, Decimal] = {}
    every_limit_set = True
    for wanted, allowed in containers:
        for resource in _QOS_RESOURCES:
            limit = allowed.get(resource, Decimal(0))
            request = wanted.get(resource, limit)
            if request > 0:
                requests[resource] = requests.get(resource, Decimal(0)) + request
            if limit > 0:
                limits[resource] = limits.get(resource, Decimal(0)) + limit
            else:
                every_limit_set = False
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if every_limit_set and requests == limits else "Burstable"
