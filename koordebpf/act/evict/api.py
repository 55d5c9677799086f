"""Evict through the API server, without ever blocking the loop."""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.errors import KubeBusy, KubeDenied, KubeError, KubeGone
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.http.refusal import jittered
from koordebpf.policy.plan import Victim
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import NS_PER_S

_MOST_DOUBLINGS = 30  # any cap is reached by then, and a float knows no 2**1024: a pod may be refused for days


class Asks(Protocol):
    """A request for the end of one pod."""

    def __call__(self, namespace: str, name: str, uid: str, *, timeout_s: float, grace_s: int | None = None) -> None:
        """Ask the API server, with the UID as precondition."""


class Evicts(Protocol):
    """The one call this executor makes; `kube.clients.evictions.KubeActions` has it."""

    def evict(self, namespace: str, name: str, uid: str, *, timeout_s: float, grace_s: int | None = None) -> None:
        """Create a policy/v1 Eviction with the UID as precondition."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class ApiLimits(msgspec.Struct, frozen=True):
    """Times and counts of API evictions.

    `timeout_s`         Why: an API server under load answers within seconds; longer, and the round after is due.
    `unknown_tries`     how often an eviction with unknown outcome is sent in all. The UID precondition makes it safe.
    `busy_first_s`, `busy_cap_s` back-off of one pod after 429 without Retry-After, doubled each time with jitter.
    `denied_first_s`, `denied_cap_s` the same after 403. Why: RBAC does not change under pressure, so up to ten minutes;
                        but an API server that has just started says 403 for a second or two, until it knows its roles.
    `close_s`           Why: an answer that is on its way takes milliseconds, and stopping the agent waits for it.
    """

    timeout_s: float = 5.0
    unknown_tries: int = 4
    unknown_wait_s: float = 0.2
    busy_first_s: float = 1.0
    busy_cap_s: float = 30.0
    denied_first_s: float = 10.0
    denied_cap_s: float = 600.0
    close_s: float = 1.0
    workers: int = 2


class _Task(msgspec.Struct):
    victim: Victim
    decided_ns: int
    tries: int = 0
    sent_ns: int | None = None


class RequestExecutor(Actuator):
    """Sends requests for the end of pods from a few worker threads; every answer becomes an Outcome in the queue.

    A pod refused by 429, or by 403 for longer, is not sent again before `retry_at_ns`: another candidate may serve
    meanwhile, and whether it is still needed then is the next round's decision. Only an unknown outcome (5xx, time-out,
    cut connection) is sent again from here. One that is refused after that has failed: it may have been done.
    """

    def __init__(
        self,
        ask: Asks,
        cut_short: Callable[[], None],
        outcomes: OutcomeQueue,
        *,
        limits: ApiLimits | None = None,
        enforce: bool = False,
    ) -> None:
        super().__init__(enforce=enforce)
        self._ask = ask
        self._cut_short = cut_short
        self._outcomes = outcomes
        self._limits = limits or ApiLimits()
        self._due: list[tuple[int, int, _Task]] = []
        self._sequence = itertools.count()
        self._changed = threading.Condition()
        self._in_flight: set[str] = set()
        self._busy: dict[str, tuple[int, int]] = {}  # uid → refusals in a row, retry_at_ns
        self._closing = False
        supervisors = [Supervisor(f"evictor-{n}") for n in range(0 if self.is_dry_run else self._limits.workers)]
        self._threads = [each.thread(functools.partial(self._work, each), again=True) for each in supervisors]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads; what is on the wire has `ApiLimits.close_s` to be answered, what still waits is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + self._limits.close_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._cut_short()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def forget(self, known_uids: frozenset[str]) -> None:
        """Drop what is remembered of pods that are no more."""
        with self._changed:
            self._busy = {uid: entry for uid, entry in self._busy.items() if uid in known_uids}

    def _act(self, victim: Victim, decided_ns: int) -> Outcome:
        uid = victim.candidate.uid
        with self._changed:
            retry_at_ns = self._busy.get(uid, (0, 0))[1]
            if time.monotonic_ns() < retry_at_ns:
                return self._outcome(
                    victim, decided_ns, Result.REFUSED, "refused a moment ago", retry_at_ns=retry_at_ns
                )
            if uid in self._in_flight:
                return self._outcome(victim, decided_ns, Result.SENT, "already on its way")
            self._in_flight.add(uid)
            self._push(time.monotonic_ns(), _Task(victim, decided_ns))
        return self._outcome(victim, decided_ns, Result.SENT, "handed to the API executor")

    def _push(self, due_ns: int, task: _Task) -> None:
        heapq.heappush(self._due, (due_ns, next(self._sequence), task))
        self._changed.notify()

    def _next(self) -> _Task | None:
        with self._changed:
            while not self._closing:
                if not self._due:
                    self._changed.wait()
                    continue
                wait_ns = self._due[0][0] - time.monotonic_ns()
                if wait_ns <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait_ns / NS_PER_S)
        return None

    def _work(self, supervisor: Supervisor) -> None:
        while (task := self._next()) is not None:
            supervisor.call(functools.partial(self._do, task))

    # Whatever happens, the pod has an outcome and may be chosen again.
    def _do(self, task: _Task) -> None:
        try:
            outcome = self._send(task)
        except Exception as error:
            self._end(self._failed(task, f"{type(error).__name__}: {error}"))
            raise
        if outcome is None:
            wait_s = jittered(self._limits.unknown_wait_s * 2 ** (task.tries - 1))
            with self._changed:
                self._push(time.monotonic_ns() + int(wait_s * NS_PER_S), task)
        else:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        with self._changed:
            self._in_flight.discard(outcome.uid)
        self._outcomes.put(outcome)

    def _failed(self, task: _Task, detail: str) -> Outcome:
        retry_at_ns = self._record_busy(task.victim.candidate.uid, None)
        return self._outcome(
            task.victim, task.decided_ns, Result.FAILED, detail, sent_ns=task.sent_ns, retry_at_ns=retry_at_ns
        )

    # None: the outcome is unknown and the same request is sent again later.
    def _send(self, task: _Task) -> Outcome | None:
        pod = task.victim.candidate
        task.tries += 1
        if task.sent_ns is None:
            task.sent_ns = time.monotonic_ns()
        retry_at_ns = None
        try:
            self._ask(pod.namespace, pod.name, pod.uid, timeout_s=self._limits.timeout_s, grace_s=task.victim.grace_s)
        except KubeBusy as error:
            retry_at_ns = self._record_busy(pod.uid, error.retry_after_s)
            result, detail = _refused(task, str(error))
        except KubeDenied as error:
            retry_at_ns = self._record_busy(pod.uid, None, is_denied=True)
            remedy = "" if error.by_policy else f": allow {error.verb} on {error.resource}"
            result, detail = _refused(task, f"{error}{remedy}")
        except KubeGone as error:
            # After a try with unknown outcome this is how our own success looks.
            result = Result.GONE if task.tries == 1 else Result.DONE
            detail = str(error) if task.tries == 1 else f"gone after try {task.tries}: {error}"
        except KubeError as error:
            if error.retry and task.tries < self._limits.unknown_tries:
                return None
            return self._failed(task, f"{error} (tried {task.tries} times)")
        else:
            result, detail = Result.DONE, "the API server has started its deletion"
            if (grace_s := task.victim.grace_s) is not None:
                detail += f", with a grace period of {grace_s} s in place of its own"
            with self._changed:
                self._busy.pop(pod.uid, None)
        return self._outcome(
            task.victim, task.decided_ns, result, detail, sent_ns=task.sent_ns, retry_at_ns=retry_at_ns
        )

    def _record_busy(self, uid: str, retry_after_s: float | None, *, is_denied: bool = False) -> int:
        limits = self._limits
        first_s, cap_s = limits.busy_first_s, limits.busy_cap_s
        if is_denied:
            first_s, cap_s = limits.denied_first_s, limits.denied_cap_s
        with self._changed:
            refusals = self._busy.get(uid, (0, 0))[0]
            if retry_after_s is None:
                retry_after_s = jittered(min(first_s * 2 ** min(refusals, _MOST_DOUBLINGS), cap_s))
            retry_at_ns = time.monotonic_ns() + int(retry_after_s * NS_PER_S)
            self._busy[uid] = (refusals + 1, retry_at_ns)
        return retry_at_ns


# A refusal says nothing of the tries before it: one of them may have been done, and counts as an eviction.
def _refused(task: _Task, why: str) -> tuple[Result, str]:
    if task.tries == 1:
        return Result.REFUSED, why
    return Result.FAILED, f"{why} (tried {task.tries} times; whether an earlier try was done is not known)"


class ApiExecutor(RequestExecutor):
    """Sends Evictions."""

    name = "api"

    def __init__(
        self, api: Evicts, outcomes: OutcomeQueue, *, limits: ApiLimits | None = None, enforce: bool = False
    ) -> None:
        super().__init__(api.evict, api.close, outcomes, limits=limits, enforce=enforce)


# Delete pods through the API server, past their PodDisruptionBudgets.


class Deletes(Protocol):
    """The one call this executor makes; `kube.clients.deletions.PodDeletions` has it."""

    def delete(self, namespace: str, name: str, uid: str, *, timeout_s: float, grace_s: int | None = None) -> None:
        """Delete a pod with the UID as precondition."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class DeletionExecutor(RequestExecutor):
    """Sends deletions. No PodDisruptionBudget is asked: for operators who name it, and for no other.

    Owns `api` and closes it.
    """

    name = "delete"

    def __init__(
        self, api: Deletes, outcomes: OutcomeQueue, *, limits: ApiLimits | None = None, enforce: bool = False
    ) -> None:
        super().__init__(api.delete, api.close, outcomes, limits=limits, enforce=enforce)
        self._api = api

    def close(self) -> None:
        """Stop; what is on its way has a second."""
        super().close()
        self._api.close()
