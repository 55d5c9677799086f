"""What the features of one decision share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from koordebpf.policy.evict.allowance import Allowance
from koordebpf.policy.evict.candidates.may_go import LEAVING, barred, refused
from koordebpf.policy.evict.candidates.protection import Reason
from koordebpf.policy.evict.pending import leaving_pods
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate
from koordebpf.state.stalls.causes import caused_stalls
from koordebpf.state.view import NodeView, PodView


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
        return barred(self.view, self.settings)

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
    def refused(self) -> Mapping[str, Reason]:
        """Code and reason of each pod that the API server refused to evict and is not asked for now, by uid."""
        return refused(self.view)

    @cached_property
    def caused(self) -> Mapping[str, int] | None:
        """Nanoseconds that latency-sensitive pods stalled on account of a pod, by its uid; None: there is no ledger."""
        return None if self.view.measured.ledger is None else caused_stalls(self.view.measured.ledger, self.view.pods)

    @cached_property
    def allowance(self) -> Allowance:
        """What the budgets leave after the victims so far."""
        return Allowance(self.view, self.settings)

    def take(self, victims: Sequence[Candidate]) -> None:
        """Count a feature's victims for those after it: they cannot be chosen again."""
        self.victims += victims
        self.barred.update(dict.fromkeys([victim.uid for victim in victims], LEAVING))
        if not self.allowance.is_endless:
            for victim in victims:
                self.allowance.take(victim)
