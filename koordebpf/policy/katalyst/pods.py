"""Pods as Katalyst's eviction manager sees them: level, validity, and the order in which they are evicted. Pure.

Source: katalyst-core pkg/agent/evictionmanager/rule/rule.go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.katalyst.qos import QosLevel, Selectors, qos_level, wants_notice
from koordebpf.slo.pods.priority import SYSTEM_CRITICAL_PRIORITY
from koordebpf.state.view import FINISHED_PHASES, PodView

CONFIG_SOURCE_ANNOTATION, _FROM_API = "kubernetes.io/config.source", "api"  # of the kubelet's own list of pods

FORCE, SOFT = "force", "soft"
# The scopes that rank before every other, the most protected first.
_SCOPES = {FORCE: 1, "memory": 2, "cpu": 3}
_OTHER_SCOPE = 4


class KatalystPod(msgspec.Struct, frozen=True, gc=False):
    """A pod with what its annotations say. `level` None: they cannot be read, and `problem` says why."""

    pod: PodView
    level: QosLevel | None
    wants_notice: bool = False
    problem: str | None = None

    @property
    def is_reclaimed(self) -> bool:
        """Whether it runs on reclaimed resources."""
        return self.level == "reclaimed_cores"

    @property
    def consumer(self) -> str:
        """The name of this pod in the allocations of the CustomNodeResource."""
        return f"{self.pod.namespace}/{self.pod.name}/{self.pod.uid}"


KeyValue = Annotated[str, msgspec.Meta(pattern="^[^=,]+=[^=,]*$")]


class QosSelectors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Annotations beside Katalyst's own that give a pod its QoS level, each as key=value.

    `dedicated` of dedicated_cores. Why none: Katalyst's default.
    `shared`    of shared_cores. Why none: the same.
    `reclaimed` of reclaimed_cores. Why none: the same.
    `system`    of system_cores. Why none: the same.
    """

    dedicated: tuple[KeyValue, ...] = ()
    shared: tuple[KeyValue, ...] = ()
    reclaimed: tuple[KeyValue, ...] = ()
    system: tuple[KeyValue, ...] = ()

    def by_level(self) -> Selectors:
        """Return them by QoS level; of one that has none, nothing."""
        of: tuple[tuple[QosLevel, tuple[str, ...]], ...] = (
            ("dedicated_cores", self.dedicated),
            ("shared_cores", self.shared),
            ("reclaimed_cores", self.reclaimed),
            ("system_cores", self.system),
        )
        return {level: pairs(texts) for level, texts in of if texts}


class SkipSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pods that no plugin is asked about.

    `annotations` those that have any of these keys. Why none: Katalyst's default.
    `labels`      the same of labels. Why none: Katalyst's default.
    """

    annotations: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()


def pairs(texts: Iterable[str]) -> dict[str, str]:
    """Return texts of the form key=value as a mapping."""
    return dict(text.split("=", 1) for text in texts)


def katalyst_pods(pods: Iterable[PodView], selectors: Selectors) -> tuple[KatalystPod, ...]:
    """Return the active pods, each with its level: all but those that ended, or are deleted and run no container.

    Source: katalyst-core pkg/util/native/pod.go, PodIsActive.
    """
    return tuple(_read(pod, selectors) for pod in pods if pod.phase not in FINISHED_PHASES and not pod.terms.is_over)


def candidates(pods: Iterable[KatalystPod], skip: SkipSettings) -> tuple[KatalystPod, ...]:
    """Return the pods that plugins are asked about: active, not critical, and without any key to skip."""
    return tuple(
        each
        for each in pods
        if not is_critical(each.pod)
        and not _has_any(each.pod.terms.annotations, skip.annotations)
        and not _has_any(each.pod.terms.labels, skip.labels)
    )


def is_critical(pod: PodView) -> bool:
    """Tell whether Kubernetes calls the pod critical: static, a mirror, or of a system priority.

    Source: k8s.io/kubernetes pkg/kubelet/types, IsCriticalPod.
    """
    source = pod.terms.annotations.get(CONFIG_SOURCE_ANNOTATION, _FROM_API)
    return pod.is_mirror or source != _FROM_API or (pod.priority or 0) >= SYSTEM_CRITICAL_PRIORITY


def may_be_evicted(each: KatalystPod) -> bool:
    """Tell whether the manager evicts a pod at all; one whose level cannot be read it may, as any other."""
    return each.level != "system_cores" and not is_critical(each.pod)


def in_eviction_order(pods: Iterable[KatalystPod], scopes: Mapping[str, str]) -> tuple[KatalystPod, ...]:
    """Return the pods, the one that is evicted first at the front.

    Reclaimed ones come first, then those of lower priority, then by scope, then by name. Katalyst leaves the rest to
    chance, and evicts the last of its sort, which is the reverse of this one.

    Args:
        pods: to be ordered.
        scopes: by UID; of one that is left out, another than those with a rank.
    """

    def key(each: KatalystPod) -> tuple[bool, bool, int, int, str, str, str]:
        pod = each.pod
        has_priority = pod.priority is not None
        scope = _SCOPES.get(scopes.get(pod.uid, ""), _OTHER_SCOPE)
        return not each.is_reclaimed, has_priority, pod.priority or 0, -scope, pod.name, pod.namespace, pod.uid

    return tuple(sorted(pods, key=key))


def _read(pod: PodView, selectors: Selectors) -> KatalystPod:
    annotations = pod.terms.annotations
    try:
        level: QosLevel | None = qos_level(annotations, selectors)
    except ConfigError as error:
        return KatalystPod(pod, None, wants_notice(annotations), str(error))
    return KatalystPod(pod, level, wants_notice(annotations))


def _has_any(of: Mapping[str, str], keys: Collection[str]) -> bool:
    return any(key in of for key in keys)
