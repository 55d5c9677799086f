"""QoS classes: Koordinator's label and Kubernetes' own class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from koordebpf.slo.quantity import parse_quantity

QOS_LABEL = "koordinator.sh/qosClass"
KOORD_QOS = frozenset({"LSE", "LSR", "LS", "BE", "SYSTEM"})

_DEFAULT_KOORD_QOS = {"Guaranteed": "LSR", "Burstable": "LS", "BestEffort": "BE"}
_QOS_RESOURCES = ("cpu", "memory")

Quantities = Mapping[str, str | int | float]


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


def kube_qos_of(containers: Iterable[tuple[Quantities | None, Quantities | None]]) -> str:
    """Return Guaranteed, Burstable or BestEffort from (requests, limits) of all containers, init containers included.

    A missing request counts as its limit: the API server writes it so, a Pod from a file has not been there.

    Source: k8s.io/kubernetes pkg/apis/core/v1/helper/qos, ComputePodQOS.
    Raises: ValueError: not a quantity.
    """
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    every_limit_set = True
    for wanted, allowed in containers:
        for resource in _QOS_RESOURCES:
            limit = _positive(allowed, resource)
            request = _positive(wanted, resource) if wanted and resource in wanted else limit
            if request:
                requests[resource] = requests.get(resource, Fraction(0)) + request
            if limit:
                limits[resource] = limits.get(resource, Fraction(0)) + limit
            else:
                every_limit_set = False
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if every_limit_set and requests == limits else "Burstable"


def _positive(quantities: Quantities | None, resource: str) -> Fraction:
    if not quantities or resource not in quantities:
        return Fraction(0)
    return max(parse_quantity(quantities[resource]), Fraction(0))
