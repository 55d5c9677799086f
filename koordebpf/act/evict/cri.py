"""Evict by stopping a pod's containers through the container runtime, as Koordinator does by default."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.errors import KubeError
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.io.closing import have_ended
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.clients.cri import PodContainers, RunningContainer, StopResult
from koordebpf.policy.plan import Victim
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import NS_PER_S, format_ns

_log = logging.getLogger(__name__)

_WARM_S = 2.0  # Why: a victim that comes meanwhile has the other worker, the next one waits for this one
_CLOSE_S = 2.0  # Why: a call that was cut short fails at once; only a connection that is being made may hang
_RETRY_NS = 5 * NS_PER_S  # Why: a runtime that failed once, under memory pressure, is given a few rounds


_Work = tuple[Victim, int, tuple[RunningContainer, ...]]


class Stops(Protocol):
    """The calls this executor makes; `kube.clients.cri.Cri` has them."""

    def warm(self, timeout_s: float) -> None:
        """Connect, and have everything ready that a stop needs."""

    def containers(self, pod_uid: str, timeout_s: float) -> PodContainers:
        """Return every container of the pod."""

    def stop(self, containers: Sequence[RunningContainer], *, grace_s: int, timeout_s: float) -> tuple[StopResult, ...]:
        """Stop them side by side and wait for all."""

    def close(self) -> None:
        """Cut every call short."""


class CriLimits(msgspec.Struct, frozen=True):
    """Times of a container stop.

    `grace_s`    between SIGTERM and SIGKILL of a victim that names none. Why 0: Koordinator's; the node is short of
                 memory now.
    `timeout_s`  Why: a runtime answers within a second; a task in uninterruptible sleep keeps it waiting.
    `warm_every_s` the connection is tried so often, and reopened where the runtime was restarted. Why 10 s: it costs
                 one short call, and a runtime that restarts is connected to before the next victim.
    `workers`    victims side by side. Why 2: as many as the API executor sends; each ends at once with grace 0.
    """

    grace_s: int = 0
    timeout_s: float = 10.0
    warm_every_s: float = 10.0
    workers: int = 2


class CriExecutor(Actuator):
    """Stops all running containers of a victim, init and sidecar containers as well.

    `known` returns every container of a pod by its UID, none where that is not certain. Those are stopped before the
    runtime is asked what runs, which takes a busy one up to 100 ms; what else it then names is stopped too.

    The Pod object stays: where its restartPolicy says so the kubelet starts the containers again. Done is a victim of
    which every container stopped, also where the runtime's answer came too late but it says of the container that it
    does not run; the sentence names each that did not.
    """

    name = "cri"

    def __init__(
        self,
        cri: Stops,
        outcomes: OutcomeQueue,
        *,
        known: Callable[[str], tuple[RunningContainer, ...]] = lambda _: (),
        limits: CriLimits | None = None,
        enforce: bool = False,
    ) -> None:
        super().__init__(enforce=enforce)
        self._cri = cri
        self._outcomes = outcomes
        self._known = known
        self._limits = limits or CriLimits()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._in_flight: dict[str, str] = {}  # uid → namespace/name
        self._is_reached = True  # as far as is known
        self._is_closing = False
        supervisors = [Supervisor(f"stopper-{n}") for n in range(0 if self.is_dry_run else self._limits.workers)]
        self._threads = [
            each.thread(functools.partial(self._stop_all, each, warms=n == 0), again=True)
            for n, each in enumerate(supervisors)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Cut the stops in progress short, then end the threads; the runtime finishes what it was asked for."""
        self._is_closing = True
        for _ in self._threads:
            self._work.put(None)
        self._cri.close()
        if not have_ended(self._threads, _CLOSE_S):
            with self._lock:
                left = ", ".join(self._in_flight.values()) or "no victim"
            _log.warning("the container runtime did not answer within %g s; left behind: %s", _CLOSE_S, left)
        self._threads = []

    def _act(self, victim: Victim, decided_ns: int) -> Outcome:
        with self._lock:
            if victim.candidate.uid in self._in_flight:
                return self._outcome(victim, decided_ns, Result.SENT, "already on its way")
            self._in_flight[victim.candidate.uid] = f"{victim.candidate.namespace}/{victim.candidate.name}"
        self._work.put((victim, decided_ns, self._known(victim.candidate.uid)))
        return self._outcome(victim, decided_ns, Result.SENT, "handed to the container runtime")

    # One of the workers keeps the connection warm, at its start and whenever it has had nothing to do.
    def _stop_all(self, supervisor: Supervisor, *, warms: bool) -> None:
        if (problem := raise_thread_priority()) is not None:  # the hog competes for the processor too
            _log.warning("containers are stopped later while the node is busy: %s", problem)
        if warms:
            supervisor.call(self._warm)
        while True:
            try:
                work = self._work.get(timeout=self._limits.warm_every_s if warms else None)
            except Empty:
                supervisor.call(self._warm)
                continue
            if work is None:
                return
            supervisor.call(functools.partial(self._do, *work))

    # Whatever happens, the victim has an outcome.
    def _do(self, victim: Victim, decided_ns: int, known: tuple[RunningContainer, ...]) -> None:
        try:
            outcome = self._stop(victim, decided_ns, known)
        except KubeError as error:
            outcome = self._failed(victim, decided_ns, None, str(error))
        except Exception as error:
            self._end(self._failed(victim, decided_ns, None, f"{type(error).__name__}: {error}"))
            raise
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        with self._lock:
            self._in_flight.pop(outcome.uid, None)
        self._outcomes.put(outcome)

    def _warm(self) -> None:
        try:
            self._cri.warm(_WARM_S)
        except KubeError as error:  # a stop says it too
            if self._is_reached and not self._is_closing:
                _log.warning("the container runtime does not answer: %s", error)
            self._is_reached = False
        else:
            self._is_reached = True

    def _stop(self, victim: Victim, decided_ns: int, known: tuple[RunningContainer, ...]) -> Outcome:
        sent_ns = time.monotonic_ns() if known else None
        results = self._stopped(victim, known)
        problems = []
        try:
            found = self._cri.containers(victim.candidate.uid, self._limits.timeout_s)
        except KubeError as error:
            if sent_ns is None:
                raise
            problems.append(f"it is not known what else of it runs: {error}")
        else:
            # A runtime takes the stop of a container that it does not know for done, and has stopped nothing.
            results = tuple(_checked(each, found) for each in results if each.problem or each.container.id in found.ids)
            asked = {each.id for each in known}
            others = [each for each in found.running if each.id not in asked]
            sent_ns = (sent_ns or time.monotonic_ns()) if results or others else None
            results += self._stopped_and_checked(victim, others)
        if sent_ns is None:
            return self._outcome(victim, decided_ns, Result.GONE, "no container of it runs")
        stopped = ", ".join(each.container.name for each in results if each.problem is None)
        problems += [f"{each.container.name} was not stopped: {each.problem}" for each in results if each.problem]
        if problems:
            detail = f"{'; '.join(problems)}; stopped: {stopped or 'none'}"
            return self._failed(victim, decided_ns, sent_ns, detail)
        took = format_ns(time.monotonic_ns() - sent_ns)
        return self._outcome(victim, decided_ns, Result.DONE, f"stopped {stopped} within {took}", sent_ns=sent_ns)

    def _stopped_and_checked(self, victim: Victim, containers: Sequence[RunningContainer]) -> tuple[StopResult, ...]:
        results = self._stopped(victim, containers)
        if all(each.problem is None for each in results):
            return results
        try:
            found = self._cri.containers(victim.candidate.uid, self._limits.timeout_s)
        except KubeError:
            return results
        return tuple(_checked(each, found) for each in results)

    def _stopped(self, victim: Victim, containers: Sequence[RunningContainer]) -> tuple[StopResult, ...]:
        if not containers:
            return ()
        grace_s = self._limits.grace_s if victim.grace_s is None else victim.grace_s
        return self._cri.stop(containers, grace_s=grace_s, timeout_s=self._limits.timeout_s)

    def _failed(self, victim: Victim, decided_ns: int, sent_ns: int | None, detail: str) -> Outcome:
        retry_at_ns = time.monotonic_ns() + _RETRY_NS
        return self._outcome(victim, decided_ns, Result.FAILED, detail, sent_ns=sent_ns, retry_at_ns=retry_at_ns)


# A runtime that answered too late, or with an error, may have stopped a container all the same.
def _checked(result: StopResult, found: PodContainers) -> StopResult:
    return StopResult(result.container, None) if result.container.id in found.ended else result
