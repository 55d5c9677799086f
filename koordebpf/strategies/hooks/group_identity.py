"""GroupIdentity: cpu.bvt_warp_ns of pods and QoS directories, and cpu.idle of best-effort pods.

cpu.bvt_warp_ns is of Anolis and Alibaba kernels; cpu.idle, since Linux 5.15, is what every kernel has.

Source: koordinator pkg/koordlet/runtimehooks/hooks/groupidentity.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from koordebpf.decoding import decoder
from koordebpf.slo.strategies.resource_qos import CPUQOS, QOSClass, ResourceQOSStrategy
from koordebpf.state.pods.hook_pods import HookPod
from koordebpf.strategies.hooks.values import GROUP_IDENTITY, HookRules, Setting

CLASSES: Final = {"LSE": "lsrClass", "LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}  # by koordinator.sh/qosClass
KUBE_CLASSES: Final = {"Burstable": "lsClass", "BestEffort": "beClass"}
CPU_QOS_ANNOTATION = "koordinator.sh/cpuQOS"  # of a Pod


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


class _CpuQos(msgspec.Struct):
    enable: bool | None = None
    groupIdentity: Annotated[int, msgspec.Meta(ge=-1, le=2)] | None = None


def pod_identity(pod: HookPod, rules: HookRules, problems: list[str]) -> Setting[int] | None:
    """Return cpu.bvt_warp_ns of a pod; None: this kernel has none, or no class is enabled."""
    if not rules.has_bvt or not is_enabled(rules.qos):
        return None
    if pod.koord_qos == "LS" and (written := pod.annotations.get(CPU_QOS_ANNOTATION)):
        try:
            own = decoder(_CpuQos).decode(written)
        except (msgspec.DecodeError, RecursionError) as error:
            problems.append(f"annotation {CPU_QOS_ANNOTATION}: {written[:80]!r}: {error}")
            return None
        value = own.groupIdentity if own.enable else 0
        return None if value is None else _setting(value, f"annotation {CPU_QOS_ANNOTATION}")
    name = class_of(pod, rules.qos)
    return _of_class(rules.qos, name) if name else directory_identity(pod.kube_qos, rules)


def directory_identity(kube_qos: str, rules: HookRules) -> Setting[int] | None:
    """Return cpu.bvt_warp_ns of the directory of a Kubernetes QoS class; that of Guaranteed is always 0."""
    if not rules.has_bvt or not is_enabled(rules.qos):
        return None
    if name := KUBE_CLASSES.get(kube_qos):
        return _of_class(rules.qos, name)
    return _setting(0, "the kernel takes no other value there")


def application_identity(qos: str | None, rules: HookRules) -> Setting[int] | None:
    """Return cpu.bvt_warp_ns of a host application: that of its class, 0 for none."""
    if not rules.has_bvt or not is_enabled(rules.qos):
        return None
    name = CLASSES.get(qos or "")
    return _of_class(rules.qos, name) if name else _setting(0, "a host application without QoS class")


def pod_idle(pod: HookPod, rules: HookRules) -> Setting[int] | None:
    """Return that a best-effort pod is idle; None: that is not wanted, or this kernel has no cpu.idle."""
    if not (rules.idles_best_effort and rules.has_idle):
        return None
    if pod.koord_qos == "BE" and pod.kube_qos == "BestEffort":
        return _setting(1, "strategies.groupIdentity.idleBestEffort")
    return None


def is_enabled(qos: ResourceQOSStrategy | None) -> bool:
    """Tell whether any class has group identity: enabled, under that policy or under none."""
    if qos is None or (qos.policies is not None and qos.policies.cpuPolicy not in (None, "groupIdentity")):
        return False
    return any((each := cpu_qos(qos, name)) is not None and bool(each.enable) for name in set(CLASSES.values()))


# A class that is not enabled has 0 (slo.strategies.resource_qos.without_disabled).
def _of_class(qos: ResourceQOSStrategy | None, name: str) -> Setting[int]:
    found = cpu_qos(qos, name)
    value = found.groupIdentity if found is not None and found.enable else 0
    return _setting(value or 0, f"NodeSLO resourceQOSStrategy.{name}.cpuQOS.groupIdentity")


def _setting(value: int, source: str) -> Setting[int]:
    return Setting(value, GROUP_IDENTITY, source)
