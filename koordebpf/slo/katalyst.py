"""Katalyst's QoS levels, what a pod asks of its eviction manager, and the taints that conditions stand for.

Source: katalyst-core pkg/config/generic/qos.go, pkg/agent/evictionmanager/conditions.go; katalyst-api
        pkg/consts/{qos,pod}.go.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Literal, get_args

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError

TAINT_PREFIX: Final = "node.katalyst.kubewharf.io/"
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# Of a label key without its prefix. Source: k8s.io/apimachinery pkg/util/validation, IsQualifiedName.
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RECLAIMED = "reclaimed_cores"  # the only QoS level whose pods the CustomNodeResource's taints are for
Taint = tuple[str, str]  # key and effect
CnrTaint = tuple[str, str, str]  # key, effect and QoS level
QosLevel = Literal["dedicated_cores", "shared_cores", "reclaimed_cores", "system_cores"]
QOS_LEVELS: tuple[QosLevel, ...] = get_args(QosLevel)
QOS_LEVEL = "katalyst.kubewharf.io/qos_level"
MEMORY_ENHANCEMENT = "katalyst.kubewharf.io/memory_enhancement"
SOFT_NOTICE = "katalyst.kubewharf.io/pod_soft_evict_notify"
_RSS_OVERUSE = "rss_overuse_threshold"
Annotations = Mapping[str, str]
Selectors = Mapping[QosLevel, Mapping[str, str]]  # more annotations that give a pod a level


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


def qos_level(annotations: Annotations, more: Selectors | None = None) -> QosLevel:
    """Return a pod's level; shared_cores where no annotation names one.

    Args:
        annotations: of the pod.
        more: annotations beside Katalyst's own; one of them gives a pod its level.
    Raises:  ConfigError: the level is none of the four, or annotations name two.
    """
    written = annotations.get(QOS_LEVEL)
    found: set[QosLevel] = set()
    for level in QOS_LEVELS:
        if written == level:
            found.add(level)
        selector = more.get(level, {}) if more else {}
        matching = [key for key, value in selector.items() if annotations.get(key) == value]
        other = [key for key in selector if key in annotations and key not in matching]
        if matching and other:
            raise ConfigError(
                f"annotations.{other[0]}", annotations[other[0]], f"says no {level}, as {matching[0]} does"
            )
        if matching:
            found.add(level)
    if written is not None and written not in QOS_LEVELS:
        raise ConfigError(f"annotations.{QOS_LEVEL}", written, f"must be one of {', '.join(QOS_LEVELS)}")
    if len(found) > 1:
        raise ConfigError("annotations", sorted(found), "name more than one QoS level")
    return found.pop() if found else "shared_cores"


def wants_notice(annotations: Annotations) -> bool:
    """Tell whether a pod is to be notified before a soft eviction, in place of being evicted.

    Source: katalyst-core pkg/agent/evictionmanager, `pod_soft_evict_notify`; any case of "true".
    """
    return annotations.get(SOFT_NOTICE, "").lower() == "true"


def rss_overuse_ratio(annotations: Annotations) -> float | None:
    """Return the pod's own RSS threshold, as a ratio of its memory request; None: it sets none.

    Raises:  ConfigError: the enhancement is no JSON object of strings, or the ratio no number above 0.
    """
    written = annotations.get(MEMORY_ENHANCEMENT)
    if written is None:
        return None
    path = f"annotations.{MEMORY_ENHANCEMENT}"
    try:
        enhancements = decoder(dict[str, str]).decode(written)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(path, written, "must be a JSON object of strings") from error
    text = enhancements.get(_RSS_OVERUSE)
    if text is None:
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio < float("inf"):
        raise ConfigError(f"{path}.{_RSS_OVERUSE}", text, "must be a number above 0")
    return ratio
