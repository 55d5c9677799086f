"""In which namespaces exemptions count: what a pod's owner wrote is honoured where the operator says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.slo.pods.qos import BANDS
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.namespaces import Namespaces, includes, label_keys
from koordebpf.state.view import Labels, NodeView, PodView

P = TypeVar("P", PodView, PodFacts)

_BEST_EFFORT = "BE"
_BEST_EFFORT_BANDS = tuple(band for band in BANDS if band.name in ("koord-batch", "koord-free"))


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
