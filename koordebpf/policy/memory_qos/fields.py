"""Which fields of memoryQOS a pod has: those of its class, a policy's in their place, single ones of its annotation.

Source: koordinator pkg/koordlet/qosmanager/plugins/cgreconcile, mergePodResourceQoSForMemoryQoS.
"""

from __future__ import annotations

from msgspec.structs import asdict, replace

from koordebpf.policy.memory_qos.values import NO_QOS, MemoryQosRules, PodQos
from koordebpf.slo.pods.memory_qos import MEMORY_QOS_ANNOTATION
from koordebpf.slo.strategies.resource_qos import DEFAULT_RESOURCE_QOS, MemoryQOS, QOSClass, ResourceQOSStrategy
from koordebpf.state.memory_qos.pods import MemoryPod

_FIELDS = tuple(name for name in MemoryQOS.__struct_fields__ if name != "enable")


def pod_fields(pod: MemoryPod, rules: MemoryQosRules) -> PodQos:
    """Return the fields of a pod. Without a NodeSLO, and with policy none, it has none.

    Cost:    10 µs.
    """
    own, name = pod.own, pod.class_name
    if rules.qos is None or (own is not None and own.policy == "none"):
        return NO_QOS
    base, place = class_fields(rules.qos, name), f"NodeSLO resourceQOSStrategy.{name}.memoryQOS"
    if own is not None and own.policy == "auto":
        base, place = _of_class(DEFAULT_RESOURCE_QOS, name), f"annotation {MEMORY_QOS_ANNOTATION} policy auto"
    values = {field: getattr(base, field) for field in _FIELDS}
    sources = {field: f"{place}.{field}" for field, value in values.items() if value is not None}
    problems: list[str] = []
    for field, value in asdict(own).items() if own is not None else ():
        if field not in values or value is None:
            continue
        most = max(rules.most_priority, values["priority"] or 0)
        if field == "priority" and value > most:
            problems.append(f"annotation {MEMORY_QOS_ANNOTATION} priority: {value}: must be at most {most}")
            continue
        values[field], sources[field] = value, f"annotation {MEMORY_QOS_ANNOTATION} {field}"
    return PodQos(MemoryQOS(**values), sources, tuple(problems))


def class_fields(qos: ResourceQOSStrategy, name: str) -> MemoryQOS:
    """Return the fields of a class; none where it is not enabled."""
    found = _of_class(qos, name)
    return found if found.enable else MemoryQOS()


def _of_class(qos: ResourceQOSStrategy, name: str) -> MemoryQOS:
    of_class: QOSClass | None = getattr(qos, name)
    found = of_class.memoryQOS if of_class is not None else None
    return replace(found) if found is not None else MemoryQOS()
