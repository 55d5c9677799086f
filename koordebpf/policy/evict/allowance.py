"""How many more pods of a workload, of a namespace and of a PodDisruptionBudget may go in a round."""

from __future__ import annotations

import functools
from collections import Counter
from copy import copy
from typing import Self

from koordebpf.policy.evict.candidates.disruption import Disruption, Disruptions
from koordebpf.policy.evict.candidates.protection import Reason
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate
from koordebpf.state.pods.exemptions import is_honoured
from koordebpf.state.view import MINUTE_NS, NodeView


class Allowance:
    """The budgets of a round. `take` counts one eviction; `copy` is for trying out which pods fit."""

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

    def take(self, candidate: Candidate) -> None:
        """Count one eviction."""
        if self._per_workload is not None and (workload := candidate.workload) is not None:
            self._gone_of_workload[workload] = self._gone_of_workload.get(workload, 0) + 1
        if self._per_namespace is not None:
            namespace = candidate.namespace
            self._gone_of_namespace[namespace] = self._gone_of_namespace.get(namespace, 0) + 1
        if self._allowed and (answer := self.answer(candidate)) is not None and answer.pdb is not None:
            self._allowed[answer.pdb] -= 1
