"""Which fields of memoryQOS a pod has: those of its class, a policy's in their place, single ones of its annotation.

An annotation is a tenant's: none of its values is weaker than what the class limits the pod to, unless an operator
allows that.

Source: koordinator pkg/koordlet/qosmanager/plugins/cgreconcile, mergePodResourceQoSForMemoryQoS.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import asdict, replace

from koordebpf.policy.memory_qos.amounts import page_cache_limit
from koordebpf.policy.memory_qos.values import NO_QOS, MemoryQosRules, PodQos
from koordebpf.slo.pods.memory_qos import MEMORY_QOS_ANNOTATION, PodMemoryQOS
from koordebpf.slo.strategies.resource_qos import DEFAULT_RESOURCE_QOS, MemoryQOS, QOSClass, ResourceQOSStrategy
from koordebpf.state.memory_qos.pods import MemoryPod

_FIELDS = tuple(name for name in MemoryQOS.__struct_fields__ if name != "enable")
_PAGE_CACHE = tuple(name for name in _FIELDS if name.startswith("pageCache"))
_SINGLE = tuple(name for name in _FIELDS if name not in _PAGE_CACHE)
# Of these a larger value limits less, and 0 does not; of those below a smaller one does less for other pods.
_LIMITS: Final = ("throttlingPercent", "wmarkRatio")
_LEAST: Final = ("wmarkScalePermill", "wmarkMinAdj", "oomKillGroup")
_PROTECTION: Final = ("minLimitPercent", "lowLimitPercent")


def pod_fields(pod: MemoryPod, rules: MemoryQosRules) -> PodQos:
    """Return the fields of a pod. Without a NodeSLO it has none.

    Cost:    10 µs.
    """
    if rules.qos is None:
        return NO_QOS
    of_class = class_fields(rules.qos, pod.class_name)
    place = f"NodeSLO resourceQOSStrategy.{pod.class_name}.memoryQOS"
    has = {field: getattr(of_class, field) for field in _FIELDS}
    from_class = {field: f"{place}.{field}" for field, value in has.items() if value is not None}
    if pod.own is None:
        return PodQos(of_class, from_class)
    values, sources = _asked(pod.own, has, from_class, pod.class_name)
    own = PodMemoryQOS() if pod.own.policy == "none" else pod.own
    problems: list[str] = []
    weaker: list[str] = []
    for field in _SINGLE:
        if rule := _broken_rule(field, values[field], has[field], pod, rules):
            weaker.append(field)
            if getattr(own, field) is not None:
                problems.append(f"annotation {MEMORY_QOS_ANNOTATION} {field}: {values[field]}: {rule}")
    if not rules.weaker_annotations and _has_more_page_cache(MemoryQOS(**values), of_class, pod, problems):
        weaker += _PAGE_CACHE
        if any(getattr(own, field) is not None for field in _PAGE_CACHE):
            problems.append(f"annotation {MEMORY_QOS_ANNOTATION}: must limit the page cache as its class does, or more")
    values |= {field: has[field] for field in weaker}
    sources |= {field: from_class[field] for field in weaker if field in from_class}
    return PodQos(MemoryQOS(**values), sources, tuple(problems))


def class_fields(qos: ResourceQOSStrategy, name: str) -> MemoryQOS:
    """Return the fields of a class; none where it is not enabled."""
    found = _of_class(qos, name)
    return found if found.enable else MemoryQOS()


# As koordlet merges them.
def _asked(
    own: PodMemoryQOS, has: dict[str, Any], from_class: dict[str, str], class_name: str
) -> tuple[dict[str, Any], dict[str, str]]:
    if own.policy == "none":
        return dict.fromkeys(_FIELDS), {}
    values, sources = dict(has), dict(from_class)
    if own.policy == "auto":
        recommended = asdict(_of_class(DEFAULT_RESOURCE_QOS, class_name))
        values = {field: recommended[field] for field in _FIELDS}
        place = f"annotation {MEMORY_QOS_ANNOTATION} policy auto"
        sources = {field: f"{place}.{field}" for field, value in values.items() if value is not None}
    for field in _FIELDS:
        if (value := getattr(own, field)) is not None:
            values[field], sources[field] = value, f"annotation {MEMORY_QOS_ANNOTATION} {field}"
    return values, sources


# What a value that is weaker than the class's would have to be; "": it is not. One that is not set counts as 0.
def _broken_rule(field: str, asked: int | None, has: int | None, pod: MemoryPod, rules: MemoryQosRules) -> str:
    value, of_class = asked or 0, has or 0
    if field == "priority":
        most = max(rules.most_priority, of_class)
        return f"must be at most {most}" if value > most else ""
    if rules.weaker_annotations:
        return ""
    if field in _LIMITS and of_class and not 0 < value <= of_class:
        return f"must be 1 to {of_class}, as its class has"
    if field in _LEAST and value < of_class:
        return f"must be at least {of_class}, as its class has"
    if field in _PROTECTION and pod.is_overcommitted and value > of_class:
        return f"must be at most {of_class}, as its class has: the pod requests memory that others may claim"
    return ""


def _has_more_page_cache(asked: MemoryQOS, of_class: MemoryQOS, pod: MemoryPod, problems: list[str]) -> bool:
    most = page_cache_limit(of_class, pod.limit_bytes, [])
    if most is None:
        return False
    said: list[str] = []
    limit = page_cache_limit(asked, pod.limit_bytes, said)
    is_more = limit is None or limit.n_bytes > most.n_bytes or limit.is_sync < most.is_sync
    problems += said if is_more else []
    return is_more


def _of_class(qos: ResourceQOSStrategy, name: str) -> MemoryQOS:
    of_class: QOSClass | None = getattr(qos, name)
    found = of_class.memoryQOS if of_class is not None else None
    return replace(found) if found is not None else MemoryQOS()
