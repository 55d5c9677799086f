"""Pods that nothing evicts, and whose exemptions from eviction count: where the operator says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.detect import be_cpu_evict, be_memory_evict, stall_evict
from koordebpf.policy.evict.disruption import Disruptions
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate, Excluded
from koordebpf.slo.pods.eviction import EVICTION_POLICY_ANNOTATION, allows_eviction
from koordebpf.slo.pods.qos import QOS_LABEL, SYSTEM_CRITICAL_PRIORITY
from koordebpf.state.pods.namespaces import (
    ExemptionSettings,
    Namespaces,
    asked_labels,
    each_kind,
    has_low_priority,
    includes,
    is_honoured,
    judged,
)
from koordebpf.state.view import FINISHED_PHASES, NodeView, PodView
from koordebpf.units import NS_PER_S

Reason = tuple[str, str]  # a stable word, and the end of a sentence, why a pod may not go
# No setting takes these out: what runs there is what kubelet and the network need.
ALWAYS_PROTECTED_NAMESPACES: Final = frozenset({"kube-system"})
SYSTEM_CRITICAL_CLASSES: Final = frozenset({"system-node-critical", "system-cluster-critical"})
_BY_LABEL = frozenset({be_memory_evict.FEATURE, be_cpu_evict.FEATURE, stall_evict.FEATURE})
_BEST_EFFORT = "BE"


def exclusion(pod: PodView | Candidate, reason: Reason) -> Excluded:
    """Return what a plan says of a pod that may not go."""
    return Excluded(pod.uid, pod.namespace, pod.name, *reason)


def protected(view: NodeView, settings: EvictSettings) -> Callable[[PodView], Reason | None]:
    """Return a function for the reason why a pod is never a victim, None where it may be one.

    A pod whose start is not known is not young.
    """
    namespaces = ALWAYS_PROTECTED_NAMESPACES | settings.protected_namespaces
    classes = settings.protected_priority_classes
    own, wall_s, min_age_ns = view.frame.ownPodUid, view.wall_s, settings.min_age_ns

    def why(pod: PodView) -> Reason | None:
        priority_class = pod.terms.priority_class
        if pod.uid == own:
            return "own_pod", "it is this agent"
        if (pod.priority or 0) >= SYSTEM_CRITICAL_PRIORITY:
            return "system_critical", f"its priority {pod.priority} is that of a system-critical pod"
        if priority_class in SYSTEM_CRITICAL_CLASSES:
            return "system_critical", f"its priority class is {priority_class}"
        if pod.namespace in namespaces:
            return "protected_namespace", f"namespace {pod.namespace} is protected"
        if priority_class in classes:
            return "protected_priority_class", f"priority class {priority_class} is protected"
        if min_age_ns and wall_s is not None and pod.terms.started_s is not None:
            age_s = wall_s - pod.terms.started_s
            if age_s * NS_PER_S < min_age_ns:
                return "young", f"it started {age_s:.0f} s ago, which is less than {min_age_ns / NS_PER_S:.0f} s"
        return None

    return why


def undecided_namespaces(view: NodeView, exemptions: ExemptionSettings) -> tuple[str, ...]:
    """Return the namespaces of pods in which an exemption counts only because their labels are not known."""
    if asked_labels(exemptions) is None:
        return ()
    return tuple(
        namespace
        for namespace in sorted({pod.namespace for pod in view.pods})
        if any(includes(kind, namespace, view.namespace_labels) is None for kind in each_kind(exemptions))
    )


def not_honoured(
    pod: PodView, candidate: Candidate, feature: str, exemptions: ExemptionSettings, view: NodeView
) -> Iterator[Excluded]:
    """Yield what would keep a candidate from going, or from going at once, if it were honoured in its namespace."""
    namespace = pod.namespace
    for honoured, code, why in _exemptions(pod, candidate, feature, exemptions):
        if not is_honoured(honoured, namespace, view):
            yield Excluded(pod.uid, namespace, pod.name, code, f"{why}, is not honoured in namespace {namespace}")


# Where each that a pod has would count, its code, and what it is.
def _exemptions(
    pod: PodView, candidate: Candidate, feature: str, exemptions: ExemptionSettings
) -> Iterator[tuple[Namespaces, str, str]]:
    policy = pod.eviction_policy
    if feature in _BY_LABEL and pod.koord_qos_label != _BEST_EFFORT:
        label = f"{QOS_LABEL}={pod.koord_qos_label}" if pod.koord_qos_label else f"no {QOS_LABEL}"
        yield (
            exemptions.qos_labels,
            "qos_label",
            f"its label ({label}): by its priority {pod.priority} it is best-effort",
        )
    if policy is not None and not allows_eviction(policy, feature):
        why = f"its annotation {EVICTION_POLICY_ANNOTATION}, which does not list {feature}"
        yield exemptions.policies, "policy", why
    if pod.terms.grace_s > 1:
        yield exemptions.grace_periods, "grace_period", f"its grace period of {pod.terms.grace_s} s"
    if (candidate.disruption or "").startswith("blocked"):
        yield exemptions.budgets, "budget", f"its PodDisruptionBudget ({candidate.disruption})"


def exempt_bytes(view: NodeView, settings: EvictSettings) -> Mapping[str, int]:
    """Return the memory of pods that BEMemoryEvict would take if what their owners wrote did not count, by reason.

    A pod with two reasons counts in both. Bytes.

    Cost:    2 µs a pod, and what PodDisruptionBudgets take.
    """
    exemptions, sums = settings.exemptions, Counter(policy=0, budget=0, grace_period=0, qos_label=0)
    disruptions = Disruptions(
        view.frame.podDisruptionBudgets if view.frame.executor == "api" and settings.obey_pdbs else ()
    )
    for pod in judged(view, exemptions).pods:
        if pod.memory is None or pod.phase in FINISHED_PHASES:
            continue
        held = credit_bytes(pod)
        if pod.koord_qos != _BEST_EFFORT:
            if has_low_priority(pod.priority):
                sums["qos_label"] += held
            continue
        if pod.eviction_policy is not None and is_honoured(exemptions.policies, pod.namespace, view):
            sums["policy"] += 0 if allows_eviction(pod.eviction_policy, be_memory_evict.FEATURE) else held
        answer = disruptions.predict(pod)
        if answer is not None and not answer.is_allowed and is_honoured(exemptions.budgets, pod.namespace, view):
            sums["budget"] += held
        has_long_grace = pod.terms.grace_s * NS_PER_S > settings.pending_max_ns
        is_cut = not is_honoured(exemptions.grace_periods, pod.namespace, view)
        is_capped = settings.max_grace_seconds is not None or is_cut
        if view.frame.executor == "api" and has_long_grace and not is_capped:
            sums["grace_period"] += held
    return sums
