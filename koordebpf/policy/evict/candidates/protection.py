"""Pods that nothing evicts, whatever their labels and the features say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate, Excluded
from koordebpf.slo.pods.qos import SYSTEM_CRITICAL_PRIORITY
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import NS_PER_S

Reason = tuple[str, str]  # a stable word, and the end of a sentence, why a pod may not go

# No setting takes these out: what runs there is what kubelet and the network need.
ALWAYS_PROTECTED_NAMESPACES: Final = frozenset({"kube-system"})
SYSTEM_CRITICAL_CLASSES: Final = frozenset({"system-node-critical", "system-cluster-critical"})


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
