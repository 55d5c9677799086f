"""Base of the executors: a dry run unless acting was enabled explicitly; and the documented last resort.

The last resort stops the cgroup of a pod that the API server would not evict in time.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import ClassVar, final

import msgspec

from koordebpf.policy.plan import Victim
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import NS_PER_S, format_ns

_API_FAILED = frozenset({Result.REFUSED, Result.FAILED})


class OutcomeQueue:
    """Outcomes from worker threads to the loop; `wake` is called after each, from the worker's thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._wake = wake

    def put(self, outcome: Outcome) -> None:
        """Hand one outcome to the loop."""
        self._outcomes.put(outcome)
        self._wake()

    def drain(self) -> tuple[Outcome, ...]:
        """Return what has come since the last call."""
        outcomes = []
        while True:
            try:
                outcomes.append(self._outcomes.get_nowait())
            except Empty:
                return tuple(outcomes)


class Actuator(abc.ABC):
    """Carries out evictions. Dry run is the default and is decided here: `_act` runs only with `enforce`."""

    name: ClassVar[str]

    def __init__(self, *, enforce: bool = False) -> None:
        self.__enforce = enforce is True

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing is ever sent."""
        return not self.__enforce

    @final
    def submit(self, victim: Victim, decided_ns: int, guard: ClosedGuard | None = None) -> Outcome:
        """Act on one victim unless a guard is closed or this is a dry run; say what happened.

        `Result.SENT` means that the rest arrives through the outcome queue.
        """
        if guard is not None:
            return self._outcome(victim, decided_ns, Result.HELD, guard.sentence)
        if not self.__enforce:
            pod = victim.candidate
            return self._outcome(
                victim, decided_ns, Result.DRY_RUN, f"would evict {pod.namespace}/{pod.name} by {self.name}"
            )
        return self._act(victim, decided_ns)

    @abc.abstractmethod
    def _act(self, victim: Victim, decided_ns: int) -> Outcome: ...

    def observe(self, outcome: Outcome) -> Outcome:
        """Take note of an outcome, returned or queued; return it with what this executor adds to it."""
        return outcome

    def forget(self, known_uids: frozenset[str]) -> None:  # noqa: B027 — an executor may remember nothing
        """Drop what is remembered of pods that are no more."""

    def close(self) -> None:  # noqa: B027 — an executor without threads has nothing to close
        """Stop the executor's threads."""

    def _outcome(
        self,
        victim: Victim,
        decided_ns: int,
        result: Result,
        detail: str,
        *,
        sent_ns: int | None = None,
        retry_at_ns: int | None = None,
        killed_tasks: int | None = None,
    ) -> Outcome:
        pod = victim.candidate
        return Outcome(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            executor=self.name,
            result=result,
            detail=detail,
            decided_ns=decided_ns,
            sent_ns=sent_ns,
            answered_ns=time.monotonic_ns() if sent_ns is not None and result is not Result.SENT else None,
            retry_at_ns=retry_at_ns,
            killed_tasks=killed_tasks,
        )


class LastResort(Actuator):
    """Sends a victim to `api`, and to `cgroup` once `api` has failed it for `kill_after_s`.

    Off unless configured: with `kill_after_s` None it is `api` alone. It passes over PodDisruptionBudgets and grace
    periods, so it is for nodes where losing the node is worse, and each outcome of it says so; and for memory in use
    alone: a pod that is killed asks for as much as before, and want of CPU loses no node. The decision to evict the pod
    is taken again in each round; this only chooses the way.
    """

    name = "api"

    def __init__(self, api: Actuator, cgroup: Actuator | None, *, kill_after_s: float | None = None) -> None:
        super().__init__(enforce=not api.is_dry_run)
        self._api = api
        self._cgroup = cgroup
        self._kill_after_ns = None if kill_after_s is None or cgroup is None else int(kill_after_s * NS_PER_S)
        self._failing_since_ns: dict[str, int] = {}
        self._spared: set[str] = set()  # those who were asked for last for something else than memory in use
        self._hasty: set[str] = set()  # those whose PodDisruptionBudgets are not honoured
        self._waited_ns: dict[str, int] = {}  # of those that are killed: how long for the API server

    @property
    def kill(self) -> Actuator | None:
        """What stops a cgroup, where that is configured."""
        return self._cgroup if self._kill_after_ns is not None else None

    def observe(self, outcome: Outcome) -> Outcome:
        """Take note of an outcome, returned or queued.

        Returns: it with the time at which the pod may be tried again; one of a kill with the words that tell of that.
        """
        if outcome.executor != self._api.name or outcome.result not in _API_FAILED:
            if outcome.result is Result.SENT:
                return outcome
            self._failing_since_ns.pop(outcome.uid, None)
            return _as_last_resort(outcome, self._waited_ns.pop(outcome.uid, None))
        since_ns = self._failing_since_ns.setdefault(outcome.uid, outcome.decided_ns)
        if self._kill_after_ns is None or outcome.uid in self._spared:
            return outcome
        kill_at_ns = since_ns if outcome.uid in self._hasty else since_ns + self._kill_after_ns
        if outcome.retry_at_ns is None or kill_at_ns < outcome.retry_at_ns:
            return msgspec.structs.replace(outcome, retry_at_ns=kill_at_ns)
        return outcome

    def forget(self, known_uids: frozenset[str]) -> None:
        """Drop what is remembered of pods that are no more."""
        self._api.forget(known_uids)
        self._failing_since_ns = {uid: ns for uid, ns in self._failing_since_ns.items() if uid in known_uids}
        self._waited_ns = {uid: ns for uid, ns in self._waited_ns.items() if uid in known_uids}
        self._spared &= known_uids
        self._hasty &= known_uids

    def close(self) -> None:
        """Stop both executors."""
        self._api.close()
        if self._cgroup is not None:
            self._cgroup.close()

    def _act(self, victim: Victim, decided_ns: int) -> Outcome:
        since_ns = self._failing_since_ns.get(victim.candidate.uid)
        if not victim.for_use:
            self._spared.add(victim.candidate.uid)
            return self._api.submit(victim, decided_ns)
        self._spared.discard(victim.candidate.uid)
        if victim.passes_budgets:
            self._hasty.add(victim.candidate.uid)
        if self._cgroup is not None and self._kill_after_ns is not None and since_ns is not None:
            waited_ns = time.monotonic_ns() - since_ns
            if victim.passes_budgets or waited_ns >= self._kill_after_ns:
                self._waited_ns[victim.candidate.uid] = waited_ns
                outcome = self._cgroup.submit(victim, decided_ns)
                return _as_last_resort(outcome, waited_ns) if outcome.result is Result.SENT else outcome
        return self._api.submit(victim, decided_ns)


def _as_last_resort(outcome: Outcome, waited_ns: int | None) -> Outcome:
    if waited_ns is None:
        return outcome
    why = f"last resort, {format_ns(waited_ns)} after the API server was asked first"
    return msgspec.structs.replace(outcome, detail=f"{why}: {outcome.detail}")
