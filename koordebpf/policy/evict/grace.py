"""The grace period of an eviction through the API server."""

from __future__ import annotations

from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.pods.exemptions import is_honoured
from koordebpf.state.view import NodeView, PodView

_HARD_S = 1  # k8s.io/kubernetes pkg/kubelet/eviction, immediateEvictionGracePeriodSeconds


def capped_grace_s(pod: PodView, view: NodeView, settings: EvictSettings) -> int | None:
    """Return the grace period to ask for in place of the pod's own; None: its own is not longer, or nothing caps it.

    Only the API server knows grace periods: the other executors give none.
    """
    cap_s = settings.max_grace_seconds
    if not is_honoured(settings.exemptions.grace_periods, pod.namespace, view):
        cap_s = _HARD_S
    if cap_s is None or view.frame.executor != "api":
        return None
    return cap_s if own_grace_s(pod) > cap_s else None


def own_grace_s(pod: PodView) -> int:
    """Return the pod's own grace period: of its deletion, where that has started."""
    terms = pod.terms
    return terms.grace_s if terms.deletion_grace_s is None else terms.deletion_grace_s


def may_be_hurried(pod: PodView, view: NodeView, settings: EvictSettings) -> bool:
    """Tell whether a pod that is being deleted could end sooner, and nothing more is expected of it as it is.

    The user who deletes a pod chooses its grace period, a day if need be; an Eviction of it shortens that.

    Source: k8s.io/apiserver pkg/registry/rest/delete.go, BeforeDelete: a running period can be shortened only.
    """
    is_late = any(
        entry.uid == pod.uid and entry.failed_ns is None and view.now_ns - entry.since_ns > settings.pending_max_ns
        for entry in view.frame.pending
    )
    return is_late and capped_grace_s(pod, view, settings) is not None
