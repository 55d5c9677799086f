"""Which pods may go now, and why not the others: one answer for all that choose pods, and for what carries it out."""

from __future__ import annotations

from koordebpf.policy.evict.candidates.protection import Reason, protected
from koordebpf.policy.evict.grace import may_be_hurried
from koordebpf.policy.evict.pending import fruitless, pending_uids
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.view import FINISHED_PHASES, LIVE_PHASES, NodeView

LEAVING: Reason = ("leaving", "it was evicted and has not released its memory yet")


def barred(view: NodeView, settings: EvictSettings) -> dict[str, Reason]:
    """Return code and reason of each pod that nothing can evict any more, by uid."""
    found: dict[str, Reason] = {}
    pending, failed = pending_uids(view, settings), fruitless(view, settings)
    is_protected = protected(view, settings)
    for pod in view.pods:
        if (why := is_protected(pod)) is not None:
            found[pod.uid] = why
        elif pod.phase in FINISHED_PHASES:
            found[pod.uid] = "finished", f"its phase is {pod.phase}: no process is left"
        elif pod.phase not in LIVE_PHASES:
            found[pod.uid] = "phase_unknown", f"its phase is {pod.phase or 'not set'}: it may not run"
        elif pod.is_terminating and not may_be_hurried(pod, view, settings):
            found[pod.uid] = "terminating", "it is already being deleted"
        elif pod.uid in pending:
            found[pod.uid] = LEAVING
        elif pod.uid in failed:
            found[pod.uid] = "no_effect", failed[pod.uid]
    return found


def refused(view: NodeView) -> dict[str, Reason]:
    """Return code and reason of each pod whose eviction the API server refused and is not asked for now, by uid."""
    return {
        each.uid: ("refused", f"its eviction was refused: {each.why}")
        for each in view.frame.refused
        if each.retry_at_ns is None or view.now_ns < each.retry_at_ns
    }
