"""QoS classes: Koordinator's label and Kubernetes' own class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

QOS_LABEL = "koordinator.sh/qosClass"
KOORD_QOS = frozenset({"LSE", "LSR", "LS", "BE", "SYSTEM"})

_DEFAULT_KOORD_QOS = {"Guaranteed": "LSR", "Burstable": "LS", "BestEffort": "BE"}
_QOS_RESOURCES = ("cpu", "memory")

_LATENCY_SENSITIVE = frozenset({"LSE", "LSR", "LS"})

Amounts = Mapping[str, Decimal]


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
