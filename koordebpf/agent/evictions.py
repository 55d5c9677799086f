"""What is remembered of evictions: who is waited for, who was refused, the budget, the pauses, and what helped."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koordebpf.act.guards.effectiveness import Usefulness
from koordebpf.act.guards.last_evictions import LastEvictions
from koordebpf.act.guards.pending import Settled, is_fruitless, note_outcome, note_told, settle
from koordebpf.act.guards.rules import Budget
from koordebpf.act.outcome import Outcome, Result
from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate
from koordebpf.state.view import NodeView, PastEviction, PendingRelease, RefusedEviction
from koordebpf.store.budget import KeptBudget
from koordebpf.units import NS_PER_S

_LOOK_CLOSELY_NS = NS_PER_S  # a victim's memory comes back in tens of milliseconds, or with its grace period


class Evictions:
    """Owns what one agent knows of the pods that it evicted. Decides nothing, sends nothing, and reads no clock.

    Args:
        kept: the budget, where the next agent finds it.
        keeps_released: an evicted pod's object goes too (executor api), so that it is never waited for again.
    """

    def __init__(self, kept: KeptBudget, settings: EvictSettings, *, keeps_released: bool) -> None:
        self.pending: tuple[PendingRelease, ...] = ()
        self.late: frozenset[str] = frozenset()  # of the pending: reported as late already
        self.last = LastEvictions()
        self.usefulness = Usefulness()
        self._kept = kept
        self._settings = settings
        self._keeps_released = keeps_released
        self._released: frozenset[str] = frozenset()  # their memory is back; the API server may not know it yet
        self._refused: dict[str, RefusedEviction] = {}

    @property
    def budget(self) -> Budget:
        """The evictions of the last minute."""
        return self._kept.budget

    @property
    def refused(self) -> tuple[RefusedEviction, ...]:
        """The pods that may not be asked for again before their time."""
        return tuple(self._refused.values())

    def sent(self, pod: Candidate, decided_ns: int, used_bytes: int, *, for_use: bool, for_cpu: bool) -> None:
        """Take note of a pod that was told to go; `used_bytes` is the node's use at the decision."""
        past = PastEviction(decided_ns, pod.uid, pod.namespace, pod.workload)
        self._kept.keep(self._kept.budget.spend(past))
        self.pending = note_told(self.pending, uid=pod.uid, credit_bytes=pod.credit_bytes, now_ns=decided_ns)
        self.usefulness = self.usefulness.told(
            pod.uid, credit_bytes=pod.credit_bytes if for_use else 0, used_bytes=used_bytes, now_ns=decided_ns
        )
        self.last = self.last.after(pod.uid, decided_ns, for_cpu=for_cpu)

    def tried(self, pod: Candidate, decided_ns: int) -> None:
        """Take note of a pod whose executor failed at once: the answer that follows says why it is passed over."""
        self.pending = note_told(self.pending, uid=pod.uid, credit_bytes=pod.credit_bytes, now_ns=decided_ns)

    def note(self, outcome: Outcome, now_ns: int) -> bool:
        """Take note of an answer; tell whether another candidate may serve meanwhile."""
        self.pending = note_outcome(self.pending, outcome, now_ns)
        is_on = any(entry.uid == outcome.uid for entry in self.pending)
        if not is_on or (is_fruitless(outcome) and not outcome.was_sent):
            self.usefulness = self.usefulness.withdrawn(outcome.uid)
        # A kill of no process may have been one of processes that this agent does not see: `settle` knows.
        if not outcome.was_sent and outcome.result is not Result.DONE:
            self._withdraw(outcome.uid, outcome.decided_ns)
        if outcome.result is Result.FAILED:
            self.last = self.last.without(outcome.uid, outcome.decided_ns)
        if is_fruitless(outcome):
            return True
        if outcome.result is Result.REFUSED or (outcome.result is Result.FAILED and outcome.retry_at_ns):
            self._refused[outcome.uid] = RefusedEviction(outcome.uid, outcome.retry_at_ns, outcome.detail)
            return True
        return any(entry.uid == outcome.uid and entry.due_ns is not None for entry in self.pending)

    def settle(self, view: NodeView) -> tuple[NodeView, Settled]:
        """Return the view with those that are still waited for, and what is news: who is back, who is late."""
        told = {entry.uid for entry in self.pending}
        self._released = (self._released - told) & {pod.uid for pod in view.pods}
        told |= self._released
        for pod in view.pods:
            if pod.is_terminating and pod.uid not in told and pod.memory:
                self.pending = note_told(self.pending, uid=pod.uid, credit_bytes=credit_bytes(pod), now_ns=view.now_ns)
        settled = settle(self.pending, view.pods, view.strays, now_ns=view.now_ns, max_ns=self._settings.pending_max_ns)
        if self._keeps_released:
            self._released |= {entry.uid for entry in settled.released}
        late_now = tuple(entry for entry in settled.late if entry.uid not in self.late)
        for entry in late_now:
            if entry.problem == "no_process":
                self.usefulness = self.usefulness.withdrawn(entry.uid)
                self._withdraw(entry.uid, entry.since_ns)
        # Of what stays in a cgroup without processes a part may be back: the node's use says whether that was enough.
        over = [entry.uid for entry in late_now if entry.problem == "memory_stays"]
        self.usefulness = self.usefulness.judged(
            [entry.uid for entry in settled.released] + over,
            [entry.uid for entry in late_now if entry.uid not in over],
            used_bytes=view.known_used_bytes,
            now_ns=view.now_ns,
        )
        self.late = frozenset(entry.uid for entry in settled.late)
        self.pending = settled.pending
        news = msgspec.structs.replace(settled, late=late_now)
        return msgspec.structs.replace(view, pending=self.pending), news

    def is_waiting(self, now_ns: int) -> bool:
        """Tell whether memory may come back at any moment, so that a close look is worth its cost."""
        return any(
            now_ns - entry.since_ns < _LOOK_CLOSELY_NS
            or (entry.due_ns is not None and entry.failed_ns is None and entry.due_ns - now_ns <= _LOOK_CLOSELY_NS)
            for entry in self.pending
        )

    def forget(self, known_uids: Iterable[str]) -> None:
        """Drop the refusals of pods that are no more."""
        known = frozenset(known_uids)
        self._refused = {uid: entry for uid, entry in self._refused.items() if uid in known}

    def _withdraw(self, uid: str, decided_ns: int) -> None:
        budget = self._kept.budget.give_back(uid, decided_ns)
        if budget != self._kept.budget:
            self._kept.keep(budget)
        self.last = self.last.without(uid, decided_ns)
