"""Base of the executors: a dry run unless acting was enabled explicitly."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import ClassVar, final

from koordebpf.policy.plan import Victim
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Outcome, Result


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
