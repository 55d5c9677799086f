"""Which class of the NodeSLO's resourceQOSStrategy is a pod's, and its part cpuQOS."""

from __future__ import annotations

from typing import Final

from koordebpf.slo.strategies.resource_qos import CPUQOS, QOSClass, ResourceQOSStrategy
from koordebpf.state.hooks.pods import HookPod

CLASSES: Final = {"LSE": "lsrClass", "LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}  # by koordinator.sh/qosClass
KUBE_CLASSES: Final = {"Burstable": "lsClass", "BestEffort": "beClass"}


def class_of(pod: HookPod, qos: ResourceQOSStrategy | None) -> str | None:
    """Return the class that a pod's label names, else that of its Kubernetes QoS; None: it has neither.

    A Guaranteed pod without a label is LSR where that class is enabled, else LS.
    """
    if name := CLASSES.get(pod.koord_qos):
        return name
    if pod.kube_qos == "Guaranteed":
        lsr = cpu_qos(qos, "lsrClass")
        return "lsrClass" if lsr is not None and lsr.enable else "lsClass"
    return KUBE_CLASSES.get(pod.kube_qos)


def cpu_qos(qos: ResourceQOSStrategy | None, name: str) -> CPUQOS | None:
    """Return cpuQOS of a class; None: the NodeSLO has no such part."""
    of_class: QOSClass | None = getattr(qos, name) if qos is not None else None
    return of_class.cpuQOS if of_class is not None else None
