"""Who may be evicted by BEMemoryEvict, and why the others that look best-effort may not."""

from __future__ import annotations

from collections.abc import Collection

from koordebpf.decide.plan import Excluded
from koordebpf.slo.eviction import EVICTION_POLICY_ANNOTATION, allows_eviction
from koordebpf.slo.qos import QOS_LABEL
from koordebpf.state.view import NodeView, PodView, RefusedEviction

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})


def candidates_of(
    view: NodeView, feature: str, leaving: Collection[str] = ()
) -> tuple[tuple[PodView, ...], tuple[Excluded, ...]]:
    """Split the node's best-effort pods into candidates and excluded ones; other pods are in neither.

    A candidate carries the label koordinator.sh/qosClass=BE exactly, lets the feature evict it, is neither finished
    nor already leaving (`leaving` are the uids that were told to go), has memory that was measured, and would free it
    by going. Koordinator takes finished and unmeasured pods too; they can only waste a round.
    """
    refused = {entry.uid: entry for entry in view.refused}
    candidates: list[PodView] = []
    excluded: list[Excluded] = []
    for pod in view.pods:
        if pod.koord_qos == "BE":
            found = _excluded_as_candidate(pod, view, feature, leaving) or _excluded_by_refusal(
                refused.get(pod.uid), view.now_ns
            )
        elif not pod.koord_qos and _looks_best_effort(pod):
            found = _excluded_by_label(pod)
        else:
            continue
        if found is None:
            candidates.append(pod)
        else:
            code, why = found
            excluded.append(Excluded(pod.uid, pod.namespace, pod.name, code, why))
    return tuple(candidates), tuple(excluded)


def _looks_best_effort(pod: PodView) -> bool:
    return pod.kube_qos == "BestEffort" or (pod.koord_qos_label or "").strip().upper() == "BE"


def _excluded_by_label(pod: PodView) -> tuple[str, str]:
    if not pod.koord_qos_label:
        return "unlabelled", f"it is Kubernetes BestEffort but has no label {QOS_LABEL}=BE"
    return "label_unknown", f"its label {QOS_LABEL} is {pod.koord_qos_label!r}; only exactly 'BE' counts"


def _excluded_as_candidate(
    pod: PodView, view: NodeView, feature: str, leaving: Collection[str]
) -> tuple[str, str] | None:
    if pod.phase in FINISHED_PHASES:
        return "finished", f"its phase is {pod.phase}: no process is left"
    if pod.is_terminating:
        return "terminating", "it is already being deleted"
    if pod.uid in leaving:
        return "leaving", "it was told to go and has not given its memory back yet"
    if not allows_eviction(pod.eviction_policy, feature):
        return "policy", f"its annotation {EVICTION_POLICY_ANNOTATION} does not list {feature}"
    if pod.is_mirror and view.executor == "api":
        return "static", "it is a static pod: the API can evict its copy only, kubelet keeps it running"
    if pod.cgroup_id is None:
        return "no_cgroup", "no cgroup of it is known"
    if pod.memory is None:
        return "unmeasured", "its memory was not measured"
    return None


def _excluded_by_refusal(refused: RefusedEviction | None, now_ns: int) -> tuple[str, str] | None:
    if refused is None or (refused.retry_at_ns is not None and now_ns >= refused.retry_at_ns):
        return None
    return "refused", f"its eviction was refused: {refused.why}"
