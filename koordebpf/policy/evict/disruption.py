"""What PodDisruptionBudgets will say to an eviction through the API server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import PodDisruptionBudget
from koordebpf.slo.selector import selects
from koordebpf.state.view import FINISHED_PHASES, PodView

ALLOWED = "allowed"
TWO_PDBS = "two PDBs: the API server refuses (500)"
_PAST_PDBS = FINISHED_PHASES | {"Pending"}  # such pods are deleted without a look at them


class Disruption(msgspec.Struct, frozen=True):
    """The API server's answer to an Eviction, as predicted. `pdb`: the one whose status.disruptionsAllowed it takes."""

    text: str
    pdb: str | None = None

    @property
    def is_allowed(self) -> bool:
        """Whether it lets the pod go now."""
        return self.text == ALLOWED


_LET_GO = Disruption(ALLOWED)


class Disruptions:
    """The PodDisruptionBudgets of a view; every pod is looked at once. None in place of an answer: nothing is known."""

    def __init__(self, pdbs: Iterable[PodDisruptionBudget] | None) -> None:
        self._by_namespace: dict[str, list[_Guard]] | None = None if pdbs is None else {}
        self._answers: dict[str, Disruption] = {}
        self.allowed: dict[str, int] = {}  # pdb → how many more pods it lets go
        for pdb in pdbs or ():
            if self._by_namespace is not None:
                self._by_namespace.setdefault(pdb.metadata.namespace, []).append(_guard(pdb))
                self.allowed[pdb.key] = max(pdb.status.disruptionsAllowed, 0)

    @property
    def is_known(self) -> bool:
        """Whether anything is known of them; that there are none is known too."""
        return self._by_namespace is not None

    def predict(self, pod: PodView) -> Disruption | None:
        """Return what the API server will answer.

        Source: k8s.io/kubernetes pkg/registry/core/pod/storage/eviction.go, Create and checkAndDecrement.
        """
        if self._by_namespace is None:
            return None
        answer = self._answers.get(pod.uid)
        if answer is None:
            answer = self._answers[pod.uid] = _answer(pod, self._by_namespace.get(pod.namespace, ()))
        return answer

    def matching(self, pod: PodView) -> tuple[PodDisruptionBudget, ...]:
        """Return those that select a pod, in any phase; none where nothing is known of them."""
        if self._by_namespace is None or not pod.terms.labels:
            return ()
        return tuple(guard.pdb for guard in self._by_namespace.get(pod.namespace, ()) if guard.selects(pod))


def _answer(pod: PodView, guards: Sequence[_Guard]) -> Disruption:
    if not guards or not pod.terms.labels or pod.is_terminating or pod.phase in _PAST_PDBS:
        return _LET_GO
    matching = [guard.pdb for guard in guards if guard.selects(pod)]
    if not matching:
        return _LET_GO
    if len(matching) > 1:
        return Disruption(TWO_PDBS)
    pdb = matching[0]
    if not pod.terms.is_ready and _lets_unhealthy_go(pdb):
        return _LET_GO
    if pdb.status.observedGeneration < pdb.metadata.generation:
        return Disruption(f"blocked by {pdb.key}, whose status is still worked out")
    if pdb.status.disruptionsAllowed <= 0:
        return Disruption(blocked_by(pdb.key))
    return Disruption(ALLOWED, pdb.key)


def blocked_by(pdb: str) -> str:
    """Return what a candidate says of a PodDisruptionBudget that does not let it go."""
    return f"blocked by {pdb}"


class _Guard(msgspec.Struct, frozen=True):
    # One PodDisruptionBudget, and what it selects where that is labels alone, as most do: `selects` takes five times
    # as long, and every pod is asked.
    pdb: PodDisruptionBudget
    labels: tuple[tuple[str, Any], ...] | None

    def selects(self, pod: PodView) -> bool:
        if self.labels is None:
            try:
                return selects(self.pdb.spec.selector, pod.terms.labels, f"{self.pdb.key} spec.selector")
            except ConfigError:
                return False  # the API server passes over a selector that it cannot use
        labels = pod.terms.labels
        for key, value in self.labels:  # noqa: SIM110 — all() of a generator takes three times as long
            if labels.get(key) != value:
                return False
        return True


def _guard(pdb: PodDisruptionBudget) -> _Guard:
    selector = pdb.spec.selector or {}
    wanted = selector.get("matchLabels")
    return _Guard(pdb, tuple(wanted.items()) if isinstance(wanted, dict) and len(selector) == 1 else None)


# spec.unhealthyPodEvictionPolicy, whose default is IfHealthyBudget. Neither takes one of disruptionsAllowed.
def _lets_unhealthy_go(pdb: PodDisruptionBudget) -> bool:
    status = pdb.status
    return pdb.spec.unhealthyPodEvictionPolicy == "AlwaysAllow" or status.currentHealthy >= status.desiredHealthy > 0
