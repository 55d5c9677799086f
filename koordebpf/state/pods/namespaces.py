"""Namespaces as an operator selects them, by name, pattern or labels; and those in which exemptions count. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.errors import ConfigError
from koordebpf.slo.pods.qos import BANDS
from koordebpf.slo.selector import selects
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import Labels, NodeView, PodView

P = TypeVar("P", PodView, PodFacts)
_BEST_EFFORT = "BE"
_BEST_EFFORT_BANDS = tuple(band for band in BANDS if band.name in ("koord-batch", "koord-free"))
_NAME = re.compile(r"[a-z0-9*?-]{1,63}")
# k8s.io/apimachinery pkg/util/validation, IsQualifiedName and IsValidLabelValue.
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}")
_VALUE = re.compile(rf"({_WORD})?")


class ExemptionSettings(msgspec.Struct, frozen=True):
    """In which namespaces it counts what the owners of pods wrote to be spared.

    `budgets`        their PodDisruptionBudgets, in these namespaces: names, patterns with * and ?, and selectors of
                     labels as {matchLabels: {tier: gold}}. Those need deploy/components/namespace-labels; where the
                     labels are not known, everything counts. Elsewhere such a pod is evicted, and where the API server
                     refuses that, executor.killAfter kills it at once. Why everywhere: as in Kubernetes.
    `policies`       annotation koordinator.sh/eviction-policy. Elsewhere it is not read. Why everywhere: as in
                     Koordinator.
    `grace_periods`  terminationGracePeriodSeconds, up to maxGraceSeconds. Elsewhere a pod evicted for the memory it
                     holds has 1 s, as in a hard eviction by the kubelet. Why everywhere: as in Kubernetes.
    `qos_labels`     label koordinator.sh/qosClass. Elsewhere a pod with a spec.priority of the bands koord-batch or
                     koord-free may go as a best-effort one, whatever its label says; with another priority nothing
                     changes. Why everywhere: as in Koordinator.
    """

    budgets: Namespaces = frozenset({"*"})
    policies: Namespaces = frozenset({"*"})
    grace_periods: Namespaces = frozenset({"*"})
    qos_labels: Namespaces = frozenset({"*"})


def is_honoured(namespaces: Namespaces, namespace: str, view: NodeView) -> bool:
    """Tell whether an exemption counts in a namespace: it is selected, or its labels are not known."""
    return includes(namespaces, namespace, view.namespace_labels) is not False


def judged(view: NodeView, exemptions: ExemptionSettings) -> NodeView:
    """Return the view with koordinator.sh/qosClass=BE for each pod whose own label does not count: by spec.priority.

    spec.priority is what an administrator grants by PriorityClass and ResourceQuota; koordinator.sh/priority-class is a
    label as well and does not count here. The label that the pod has stays in `koord_qos_label`. All that asks for the
    class takes it from here, so that the label has no effect on evictions, on what stalls are charged for, or on the
    CPU of others. The CPUs that the scheduler bound a pod to stay its own.

    Cost:    nothing where all labels count; else 1 µs a pod. Twice is harmless.
    """
    if "*" in exemptions.qos_labels:
        return view
    return replace(view, pods=tuple(judged_pods(view.pods, exemptions, view.namespace_labels)))


def judged_pods(pods: Iterable[P], exemptions: ExemptionSettings, labels: Mapping[str, Labels]) -> list[P]:
    """Return the pods of `judged`, before or after they were measured; `labels` are those of namespaces."""
    return [
        replace(pod, koord_qos=_BEST_EFFORT)
        if pod.koord_qos != _BEST_EFFORT
        and has_low_priority(pod.priority)
        and includes(exemptions.qos_labels, pod.namespace, labels) is False
        else pod
        for pod in pods
    ]


def asked_labels(exemptions: ExemptionSettings) -> frozenset[str] | None:
    """Return the labels of namespaces that decide about exemptions; None: names alone do."""
    return label_keys(each_kind(exemptions))


def may_replace_label(exemptions: ExemptionSettings, priority: int | None) -> bool:
    """Tell whether somewhere a pod of this spec.priority may go as a best-effort one, whatever its label says."""
    return "*" not in exemptions.qos_labels and has_low_priority(priority)


def each_kind(exemptions: ExemptionSettings) -> tuple[Namespaces, ...]:
    """Return the selections, one for each kind of exemption."""
    return exemptions.budgets, exemptions.policies, exemptions.grace_periods, exemptions.qos_labels


def has_low_priority(priority: int | None) -> bool:
    """Tell whether a spec.priority is of the bands koord-batch or koord-free."""
    return priority is not None and any(band.lowest <= priority <= band.highest for band in _BEST_EFFORT_BANDS)


class LabelExpression(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class NamespaceSelector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """metav1.LabelSelector of the labels of a namespace; an empty one selects every namespace."""

    matchLabels: dict[str, str] = {}
    matchExpressions: tuple[LabelExpression, ...] = ()

    def __hash__(self) -> int:
        """Hash by value, as the others do; msgspec's own stumbles over the dict."""
        return hash((frozenset(self.matchLabels.items()), self.matchExpressions))

    @property
    def keys(self) -> frozenset[str]:
        """The labels that it looks at."""
        return frozenset([*self.matchLabels, *(each.key for each in self.matchExpressions)])


Namespaces = frozenset[str | NamespaceSelector]


def includes(namespaces: Namespaces, namespace: str, labels: Mapping[str, Labels]) -> bool | None:
    """Tell whether one of these is the namespace; None: it depends on labels that are not known.

    A name may have `*` for any text and `?` for one character. `labels` are those of each namespace that is known.

    Cost:    0.5 µs.
    """
    if "*" in namespaces or _pattern(namespaces).fullmatch(namespace) is not None:
        return True
    if not _selectors(namespaces):
        return False
    known = labels.get(namespace)
    return None if known is None else _selected(namespaces, known)


def label_keys(several: Iterable[Namespaces]) -> frozenset[str] | None:
    """Return the labels that these look at; None: they select by name alone."""
    selectors = [each for namespaces in several for each in _selectors(namespaces)]
    return frozenset(key for each in selectors for key in each.keys) if selectors else None


def check_namespaces(namespaces: Namespaces, path: str) -> None:
    """Let pass what the API server would take.

    Raises:  ConfigError: no such name, label or selector can be; names `path`, value and rule.
    """
    for each in namespaces:
        if isinstance(each, NamespaceSelector):
            _check_selector(each, path)
        elif not _NAME.fullmatch(each):
            rule = "must be a namespace, a pattern of one with * and ?, or a selector of labels"
            raise ConfigError(path, each, rule)


def as_written(namespaces: Namespaces) -> list[Any]:
    """Return them as the configuration has them, names first."""
    return sorted(map(_plain, namespaces), key=lambda each: (isinstance(each, dict), str(each)))


def _check_selector(selector: NamespaceSelector, path: str) -> None:
    for each in selector.matchExpressions:
        if bool(each.values) != (each.operator in ("In", "NotIn")):
            rule = "must have values" if not each.values else "must have no values"
            raise ConfigError(f"{path}.matchExpressions", each.key, f"{rule} with operator {each.operator}")
    for key in selector.keys:
        if not _KEY.fullmatch(key):
            raise ConfigError(path, key, "must be the key of a label")
    for value in [
        *selector.matchLabels.values(),
        *(value for each in selector.matchExpressions for value in each.values),
    ]:
        if not _VALUE.fullmatch(value):
            raise ConfigError(path, value, "must be the value of a label")


@functools.lru_cache(64)
def _pattern(namespaces: Namespaces) -> re.Pattern[str]:
    names = sorted(each for each in namespaces if isinstance(each, str))
    as_text = (re.escape(name).replace(r"\*", ".*").replace(r"\?", ".") for name in names)
    return re.compile("|".join(as_text) or r"(?!)")


@functools.lru_cache(64)
def _selectors(namespaces: Namespaces) -> tuple[NamespaceSelector, ...]:
    return tuple(each for each in namespaces if isinstance(each, NamespaceSelector))


@functools.lru_cache(4096)
def _selected(namespaces: Namespaces, labels: Labels) -> bool:
    of = dict(labels)
    return any(selects(_plain(each), of, "") for each in _selectors(namespaces))


# With lists, not tuples.
def _plain(each: str | NamespaceSelector) -> Any:
    return msgspec.json.decode(msgspec.json.encode(each))
