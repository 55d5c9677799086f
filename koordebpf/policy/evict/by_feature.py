"""Whom each feature may evict, in which order, and why others that look best-effort may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordebpf.policy.evict.exemptions import Reason, exclusion
from koordebpf.policy.evict.ranking import by_name
from koordebpf.policy.evict.recurring import recurring
from koordebpf.policy.evict.round import Round
from koordebpf.policy.plan import Excluded
from koordebpf.slo.pods.eviction import EVICTION_ENABLED_LABEL, EVICTION_POLICY_ANNOTATION, allows_eviction
from koordebpf.slo.pods.qos import QOS_LABEL
from koordebpf.state.pods.namespaces import is_honoured
from koordebpf.state.view import PodView


def candidates_by_priority(
    current: Round, feature: str, highest: int, *, needs_usage: bool, for_cpu: bool = False
) -> tuple[tuple[PodView, ...], tuple[Excluded, ...]]:
    """Split the pods into candidates and excluded ones; a pod above `highest` that asks for no eviction is in neither.

    A candidate runs or will run, has a priority of at most `highest` (the default of its band where it has none), and
    carries the label koordinator.sh/eviction-enabled=true. Koordinator asks for a measured usage in both features; here
    only the one that counts usage does, unless with `strict_compat`.
    """
    why_not = excluding_now(current, feature, needs_usage=needs_usage, for_cpu=for_cpu)
    candidates: list[PodView] = []
    excluded: list[Excluded] = []
    for pod in current.view.pods:
        terms = pod.terms
        found: Reason | None
        if terms.priority > highest:
            if not terms.is_enabled:
                continue
            found = "priority", f"its priority {terms.priority} is above {highest}"
        elif not terms.is_enabled:
            found = "not_enabled", f"it has no label {EVICTION_ENABLED_LABEL}=true"
        else:
            found = why_not(pod)
        if found is None:
            candidates.append(pod)
        else:
            excluded.append(exclusion(pod, found))
    return tuple(candidates), tuple(excluded)


def priority_key(pod: PodView) -> tuple[int, int, int]:
    """Return what comes before size: annotation eviction-priority, priority, label koordinator.sh/priority."""
    return pod.terms.own_priority, pod.terms.priority, pod.terms.sub_priority


def priority_order(pods: Iterable[PodView], size: Callable[[PodView], int]) -> list[PodView]:
    """Return the pods in Koordinator's order, the first victim first.

    `priority_key` ascending, then `size` descending; exact ties are settled by chance there. Here name descending,
    namespace and uid settle them.

    Source: koordinator pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go, getPodEvictInfoAndSortByPriority.
    """

    def rank(pod: PodView) -> tuple[int, int, int, int]:
        terms = pod.terms
        return terms.own_priority, terms.priority, terms.sub_priority, -size(pod)

    order = by_name(pods)
    order.sort(key=rank)
    return order


def candidates_of(
    current: Round, feature: str, *, needs_memory: bool = True, for_cpu: bool = False
) -> tuple[tuple[PodView, ...], tuple[Excluded, ...]]:
    """Split the node's best-effort pods into candidates and excluded ones; other pods are in neither.

    A candidate carries the label koordinator.sh/qosClass=BE exactly, or stands for one that does
    (`exemptions.judged`), lets the feature evict it, is neither finished nor already leaving, has memory that was
    measured if it is evicted for CPU, and its eviction would free it.
    For CPU a pod that was killed is none while no process is in it.
    Koordinator takes finished and unmeasured pods too; they can only waste a round. With `strict_compat` the unmeasured
    ones are candidates.
    """
    needs_usage = needs_memory and not for_cpu and not current.settings.strict_compat
    why_not = excluding_now(current, feature, needs_usage=needs_usage, for_cpu=for_cpu)
    candidates: list[PodView] = []
    excluded: list[Excluded] = []
    for pod in current.view.pods:
        if pod.koord_qos == "BE":
            found = why_not(pod)
        elif not pod.koord_qos and _looks_best_effort(pod):
            found = _excluded_by_label(pod)
        else:
            continue
        if found is None:
            candidates.append(pod)
        else:
            excluded.append(exclusion(pod, found))
    return tuple(candidates), tuple(excluded)


def _looks_best_effort(pod: PodView) -> bool:
    return pod.kube_qos == "BestEffort" or (pod.koord_qos_label or "").strip().upper() == "BE"


def _excluded_by_label(pod: PodView) -> Reason:
    if not pod.koord_qos_label:
        return "unlabelled", f"it is Kubernetes BestEffort but has no label {QOS_LABEL}=BE"
    return "label_unknown", f"its label {QOS_LABEL} is {pod.koord_qos_label!r}; only exactly 'BE' counts"


def excluding_now(
    current: Round, feature: str, *, needs_usage: bool, for_cpu: bool = False
) -> Callable[[PodView], Reason | None]:
    """Return a function for code and reason why this feature cannot evict a pod now, None where it may."""
    barred, refused, view = current.barred, current.refused, current.view
    policies = current.settings.exemptions.policies
    killed = view.killed if for_cpu else frozenset[str]()
    comes_back = recurring(view, is_off=for_cpu or current.settings.strict_compat)
    is_api, needs_cgroup = view.frame.executor == "api", needs_usage or view.frame.executor == "cgroup"

    def why(pod: PodView) -> Reason | None:
        if (found := barred.get(pod.uid)) is not None:
            return found
        if pod.uid in killed:
            return "killed", "it was killed and has had no process since: it uses no CPU"
        policy = pod.eviction_policy
        is_kept = policy is not None and not allows_eviction(policy, feature)
        if is_kept and is_honoured(policies, pod.namespace, view):
            return "policy", f"its annotation {EVICTION_POLICY_ANNOTATION} does not list {feature}"
        if pod.is_mirror and is_api:
            return "static", "it is a static pod: the API can evict its copy only, kubelet keeps it running"
        if pod.cgroup_id is None and needs_cgroup:
            return "no_cgroup", "no cgroup of it is known"
        if pod.memory is None and needs_usage:
            return "unmeasured", "its memory was not measured"
        if (again := comes_back(pod)) is not None:
            return again
        return refused.get(pod.uid)

    return why
