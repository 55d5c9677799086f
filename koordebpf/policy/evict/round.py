"""What the features of one decision share: which pods may go now, why not the others, and how many more may go."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Self

from koordebpf.policy.evict.disruption import Disruption, Disruptions
from koordebpf.policy.evict.exemptions import Reason, protected
from koordebpf.policy.evict.pending import fruitless, leaving_pods, pending_uids
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.settings import EvictSettings, may_be_hurried
from koordebpf.policy.plan import Candidate
from koordebpf.state.pods.namespaces import is_honoured
from koordebpf.state.stalls.ledger import caused_stalls
from koordebpf.state.view import FINISHED_PHASES, LIVE_PHASES, MINUTE_NS, NodeView, PodView

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


class Allowance:
    """The budgets of a round. `spend` counts one eviction; `copy` is for trying out which pods fit."""

    def __init__(self, view: NodeView, settings: EvictSettings) -> None:
        self._per_workload = settings.evictions_per_workload
        self._per_namespace = settings.evictions_per_namespace
        recent = [each for each in view.frame.evictions if view.now_ns - each.at_ns < MINUTE_NS]
        # Plain dicts: a Counter looks a missing key up by a call.
        self._gone_of_workload = dict(Counter(each.workload for each in recent))
        self._gone_of_namespace = dict(Counter(each.namespace for each in recent))
        self._honours = functools.partial(is_honoured, settings.exemptions.budgets, view=view)
        self._obeys_pdbs = settings.obey_pdbs and view.frame.executor == "api"
        self._disruptions = Disruptions(view.frame.podDisruptionBudgets)
        self._allowed = dict(self._disruptions.allowed)
        self._pods = {pod.uid: pod for pod in view.pods} if self._disruptions.is_known else {}

    @property
    def knows_pdbs(self) -> bool:
        """Whether anything is known of PodDisruptionBudgets; that there are none is known too."""
        return self._disruptions.is_known

    @property
    def is_endless(self) -> bool:
        """Whether every pod may be evicted, and nothing is known of PodDisruptionBudgets."""
        return self._per_workload is None and self._per_namespace is None and not self._disruptions.is_known

    def copy(self) -> Self:
        """Return the same budgets, to be counted down for themselves."""
        made = copy(self)
        made._gone_of_workload = self._gone_of_workload.copy()
        made._gone_of_namespace = self._gone_of_namespace.copy()
        made._allowed = self._allowed.copy()
        return made

    def answer(self, candidate: Candidate) -> Disruption | None:
        """Return what the API server will say, before anything of this round; None: nothing is known."""
        pod = self._pods.get(candidate.uid)
        return self._disruptions.predict(pod) if pod is not None else None

    def is_blocked(self, answer: Disruption | None, namespace: str) -> bool:
        """Tell whether it will refuse after what was taken already, and that is honoured in this namespace."""
        if answer is None or not self._obeys_pdbs or not self._honours(namespace):
            return False
        return not answer.is_allowed or (answer.pdb is not None and self._allowed[answer.pdb] <= 0)

    def over(self, namespace: str, workload: str | None) -> Reason | None:
        """Return code and reason why the budgets let no further pod of this namespace and workload go."""
        most = self._per_workload
        if most is not None and workload is not None and self._gone_of_workload.get(workload, 0) >= most:
            return "workload_budget", f"no more than {most} of {workload} may go in a minute"
        most = self._per_namespace
        if most is not None and self._gone_of_namespace.get(namespace, 0) >= most:
            return "namespace_budget", f"no more than {most} of namespace {namespace} may go in a minute"
        return None

    def spend(self, candidate: Candidate) -> None:
        """Count one eviction."""
        if self._per_workload is not None and (workload := candidate.workload) is not None:
            self._gone_of_workload[workload] = self._gone_of_workload.get(workload, 0) + 1
        if self._per_namespace is not None:
            namespace = candidate.namespace
            self._gone_of_namespace[namespace] = self._gone_of_namespace.get(namespace, 0) + 1
        if self._allowed and (answer := self.answer(candidate)) is not None and answer.pdb is not None:
            self._allowed[answer.pdb] -= 1


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

    def count_victims(self, victims: Sequence[Candidate]) -> None:
        """Count a feature's victims for those after it: they cannot be chosen again."""
        self.victims += victims
        self.barred.update(dict.fromkeys([victim.uid for victim in victims], LEAVING))
        if not self.allowance.is_endless:
            for victim in victims:
                self.allowance.spend(victim)
