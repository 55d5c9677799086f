"""What the features of one decision share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from koordebpf.policy.evict.allowance import Allowance
from koordebpf.policy.evict.candidates.protection import Reason, protected
from koordebpf.policy.evict.grace import may_be_hurried
from koordebpf.policy.evict.pending import fruitless, leaving_pods, pending_uids
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate
from koordebpf.state.stalls.causes import caused_stalls
from koordebpf.state.view import FINISHED_PHASES, LIVE_PHASES, NodeView, PodView, RefusedEviction

_LEAVING = ("leaving", "it was evicted and has not released its memory yet")


class Round:
    """A view, its settings, and the victims so far. What follows from them is computed once, when first needed."""

    def __init__(self, view: NodeView, settings: EvictSettings, reliefs: Iterable[Relief]) -> None:
        self.view = view
        self.settings = settings
        self.reliefs = [each for each in reliefs if each.is_measured(view)]
        self.victims: list[Candidate] = []  # of the features that had their turn

    @cached_property
    def barred(self) -> dict[str, Reason]:
        """Code and reason of each pod that no feature can evict any more, by uid."""
        barred: dict[str, Reason] = {}
        pending, failed = pending_uids(self.view, self.settings), fruitless(self.view, self.settings)
        is_protected = protected(self.view, self.settings)
        for pod in self.view.pods:
            if (found := is_protected(pod)) is not None:
                barred[pod.uid] = found
            elif pod.phase in FINISHED_PHASES:
                barred[pod.uid] = "finished", f"its phase is {pod.phase}: no process is left"
            elif pod.phase not in LIVE_PHASES:
                barred[pod.uid] = (
                    "phase_unknown",
                    f"its phase is {pod.phase or 'not set'}: it may not run",
                )
            elif pod.terms.problem is not None:
                barred[pod.uid] = "unreadable", pod.terms.problem
            elif pod.is_terminating and not may_be_hurried(pod, self.view, self.settings):
                barred[pod.uid] = "terminating", "it is already being deleted"
            elif pod.uid in pending:
                barred[pod.uid] = _LEAVING
            elif pod.uid in failed:
                barred[pod.uid] = "no_effect", failed[pod.uid]
        return barred

    @cached_property
    def pods(self) -> Mapping[str, PodView]:
        """The pods by uid."""
        return {pod.uid: pod for pod in self.view.pods}

    @cached_property
    def leaving(self) -> tuple[PodView, ...]:
        """The pods that leave already."""
        return leaving_pods(self.view, self.settings)

    @cached_property
    def leaving_or_killed(self) -> tuple[PodView, ...]:
        """The same with those that were killed, without whose processes only their requests are left."""
        return leaving_pods(self.view, self.settings, self.view.killed)

    @cached_property
    def refused(self) -> Mapping[str, RefusedEviction]:
        """What the API server refused to evict, by uid."""
        return {entry.uid: entry for entry in self.view.refused}

    @cached_property
    def caused(self) -> Mapping[str, int] | None:
        """Nanoseconds that latency-sensitive pods stalled on account of a pod, by its uid; None: there is no ledger."""
        return None if self.view.ledger is None else caused_stalls(self.view.ledger, self.view.pods)

    @cached_property
    def allowance(self) -> Allowance:
        """What the budgets leave after the victims so far."""
        return Allowance(self.view, self.settings)

    def take(self, victims: Sequence[Candidate]) -> None:
        """Count a feature's victims for those after it: they cannot be chosen again."""
        self.victims += victims
        self.barred.update(dict.fromkeys([victim.uid for victim in victims], _LEAVING))
        if not self.allowance.is_endless:
            for victim in victims:
                self.allowance.take(victim)
