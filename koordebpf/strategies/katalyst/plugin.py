"""Pods as Katalyst's eviction manager sees them, and what a plugin inside the agent is. Pure.

A module of `plugins/` has some of these, and `inner.py` a line for each.

Source: katalyst-core pkg/agent/evictionmanager/rule/rule.go, plugin/plugin.go.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Generic, TypeVar

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.katalyst import QosLevel, Selectors, qos_level, wants_notice
from koordebpf.slo.pods.qos import SYSTEM_CRITICAL_PRIORITY
from koordebpf.state.view import FINISHED_PHASES, NodeView, PodView
from koordebpf.strategies.katalyst.values import EvictAsked, KatalystMeasured, Threshold, TopPods

CONFIG_SOURCE_ANNOTATION, _FROM_API = "kubernetes.io/config.source", "api"  # of the kubelet's own list of pods
FORCE, SOFT = "force", "soft"
# The scopes that rank before every other, the most protected first.
_SCOPES = {FORCE: 1, "memory": 2, "cpu": 3}
_OTHER_SCOPE = 4
KeyValue = Annotated[str, msgspec.Meta(pattern="^[^=,]+=[^=,]*$")]
Grace = Annotated[int, msgspec.Meta(ge=0)] | None  # seconds that an evicted pod is given; None: its own
_NAMES = 2  # spelled out in a sentence
NO_CNR = "there is no CustomNodeResource of this node"  # what plugins lack that judge by it
S = TypeVar("S", bound=msgspec.Struct)  # what a plugin remembers from one round to the next
C = TypeVar("C", bound=msgspec.Struct)  # what an operator may set


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


class Seen(msgspec.Struct, frozen=True):
    """What a plugin decides from.

    `active`     all pods that did not end.
    `candidates` those it is asked about: they may be forced out now.
    `is_regular` False: pressure began the round ahead of its time, that of the plugins in `pressing`.
    `kept_softly` UIDs of candidates that may not be evicted softly now.
    `leaving`    pods that leave already, and are counted on.
    """

    view: NodeView
    measured: KatalystMeasured
    active: tuple[KatalystPod, ...]
    candidates: tuple[KatalystPod, ...]
    is_regular: bool = True
    pressing: tuple[str, ...] = ()
    kept_softly: Collection[str] = frozenset()
    leaving: tuple[KatalystPod, ...] = ()

    @property
    def soft(self) -> list[KatalystPod]:
        """The candidates that may also be evicted softly now."""
        return [each for each in self.candidates if each.pod.uid not in self.kept_softly]

    @property
    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return self.view.now_ns


class Looked(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What a plugin finds in one round. `lacks`: what is not known here, in a sentence, so that it judges nothing."""

    state: S
    threshold: Threshold | None = None
    evict: tuple[EvictAsked, ...] = ()
    lacks: str | None = None


def coming_back(
    seen: Seen, need: float, gives: Callable[[KatalystPod], int | None], text: Callable[[int], str]
) -> str | None:
    """Return why no pod is chosen for a need, in a sentence: what leaves already covers it; None: it does not.

    Args:
        seen: as of the round.
        need: what is missing.
        gives: what of it comes back when a pod has left; None: not measured.
        text: such an amount, for people.
    """
    given = {each.pod.key: amount for each in seen.leaving if (amount := gives(each))}
    if not given or sum(given.values()) < need:
        return None
    names = sorted(given, key=lambda key: (-given[key], key))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{text(sum(given.values()))} is already coming back from {', '.join(names[:_NAMES])}{more}"


def is_cooling(seen: Seen, chosen_ns: int | None, chosen: Collection[str], cool_down_ns: int) -> bool:
    """Tell whether the cool-down after a choice still runs: not if the API server refused every pod that was chosen.

    Args:
        seen: as of the round.
        chosen_ns: when pods were chosen last; None: never.
        chosen: their UIDs; none: refusals do not count.
        cool_down_ns: from one choice to the next.
    """
    if chosen_ns is None or seen.now_ns - chosen_ns >= cool_down_ns:
        return False
    refused = {each.uid for each in seen.view.frame.refused}
    return not chosen or any(uid not in refused for uid in chosen)


class InnerPlugin(abc.ABC, Generic[S, C]):
    """One plugin. `name` is Katalyst's; `settings` and `state` are types with a default for each field."""

    name: str
    settings: type[C]
    state: type[S]

    @abc.abstractmethod
    def judge(self, seen: Seen, state: S, settings: C) -> Looked[S]:
        """Return whether the threshold is met, and pods to be evicted whatever it says: ThresholdMet, GetEvictPods."""

    def top_pods(self, seen: Seen, state: S, settings: C, top_n: int) -> tuple[TopPods, S]:
        """Return the pods to evict for the threshold, at most so many where that is not 0: GetTopEvictionPods."""
        return TopPods(()), state
