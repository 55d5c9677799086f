"""Evict by stopping the pod's whole cgroup."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from queue import SimpleQueue

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.act.evict.unfinished_kill import KILL_DEADLINE_NS, UnfinishedKill, how_it_ended
from koordebpf.errors import ActuationError, CgroupGone
from koordebpf.kernel.cgroup.kill import Kill, KillTarget, raise_thread_priority
from koordebpf.kernel.cgroup.lifted import CpuLimit, lift, limits_of, restore_limits
from koordebpf.kernel.io.closing import have_ended
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.policy.plan import Victim
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import NS_PER_S

_log = logging.getLogger(__name__)

_REAPERS = 2  # Why: the memory of two victims is released in parallel; more would only share the same processors
_CLOSE_S = KILL_DEADLINE_NS / NS_PER_S + 2  # Why: a kill has that long; of many, the later ones end beside the first
_Work = tuple[Victim, int, Kill, tuple[CpuLimit, ...]]


class CgroupExecutor(Actuator):
    """Kills in the calling thread and gives the memory back in its own threads.

    `locate` finds the directories of a pod's cgroup by the cgroup's id and the pod's UID, None where it is gone.
    `submit` returns once every process has its signal, in about a millisecond; the outcome follows when the cgroup is
    empty. `note` gets each kill before its first signal, so that a successor can finish it.
    """

    name = "cgroup"

    def __init__(
        self,
        locate: Callable[[int, str], KillTarget | None],
        outcomes: OutcomeQueue,
        *,
        enforce: bool = False,
        note: Callable[[UnfinishedKill], object] | None = None,
    ) -> None:
        super().__init__(enforce=enforce)
        self._locate = locate
        self._note = note
        self._outcomes = outcomes
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._unfinished: dict[str, str] = {}  # uid → namespace/name
        # Started now: under pressure a new thread's stack is one more allocation that may stall.
        supervisors = [Supervisor(f"reaper-{n}") for n in range(0 if self.is_dry_run else _REAPERS)]
        self._threads = [each.thread(functools.partial(self._reap, each), again=True) for each in supervisors]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Finish the kills in progress, which have their deadline, then stop the threads."""
        for _ in self._threads:
            self._work.put(None)
        if not have_ended(self._threads, _CLOSE_S):
            left = ", ".join(list(self._unfinished.values()))
            _log.warning("kills were not finished within %g s; the next agent looks at them: %s", _CLOSE_S, left)
        self._threads = []

    def _act(self, victim: Victim, decided_ns: int) -> Outcome:
        pod = victim.candidate
        cgroup_id = pod.cgroup_id
        target = self._locate(cgroup_id, pod.uid) if cgroup_id is not None else None
        if target is None or target.cgroup_id != cgroup_id:
            return self._outcome(victim, decided_ns, Result.GONE, "the pod has no cgroup any more")
        limits = limits_of(target.cpu) if target.cpu is not None else ()
        if self._note:
            self._note(UnfinishedKill(pod.uid, pod.namespace, pod.name, decided_ns, target, limits))
        try:
            kill = _lifted_and_started(target, limits)
        except CgroupGone:
            return self._outcome(victim, decided_ns, Result.GONE, f"{target.memory_path} is gone or another cgroup")
        except Exception as error:  # whatever a pod has in its cgroup is that pod's harm, and never the agent's end
            return self._outcome(victim, decided_ns, Result.FAILED, _said(error))
        self._unfinished[pod.uid] = f"{pod.namespace}/{pod.name}"
        self._work.put((victim, decided_ns, kill, limits))
        return self._outcome(victim, decided_ns, Result.SENT, "every process has its signal", sent_ns=kill.signalled_ns)

    def _reap(self, supervisor: Supervisor) -> None:
        if (problem := raise_thread_priority()) is not None:
            _log.warning("memory of victims comes back more slowly: %s", problem)
        while (work := self._work.get()) is not None:
            supervisor.call(functools.partial(self._finish, *work))

    # Whatever happens, limits are restored and the victim has an outcome.
    def _finish(self, victim: Victim, decided_ns: int, kill: Kill, limits: tuple[CpuLimit, ...]) -> None:
        unexpected: Exception | None = None
        try:
            outcome = self._finished(victim, decided_ns, kill)
        except Exception as error:
            outcome = self._outcome(victim, decided_ns, Result.FAILED, _said(error), sent_ns=kill.signalled_ns)
            unexpected = None if isinstance(error, ActuationError | OSError) else error
        try:
            _restored(kill.target, limits)
        finally:
            self._unfinished.pop(victim.candidate.uid, None)
            self._outcomes.put(outcome)
        if unexpected is not None:
            raise unexpected

    def _finished(self, victim: Victim, decided_ns: int, kill: Kill) -> Outcome:
        with kill:
            report = kill.finish(deadline_ns=time.monotonic_ns() + KILL_DEADLINE_NS)
        result, detail = how_it_ended(report, kill.target)
        # Where no process was found no signal was sent: such a kill is not in the budget.
        found = report.killed_tasks or report.left_tasks or report.unseen_tasks or result is Result.DONE
        return self._outcome(
            victim,
            decided_ns,
            result,
            detail,
            sent_ns=kill.signalled_ns if found else None,
            killed_tasks=report.killed_tasks,
        )


# Lifted first: who runs frees its memory by itself. What cannot be lifted slows the end and nothing else.
def _lifted_and_started(target: KillTarget, limits: tuple[CpuLimit, ...]) -> Kill:
    if target.cpu is not None and limits:
        lift(target.cpu, limits)
    try:
        return Kill.begin(target)
    except BaseException:
        _restored(target, limits)
        raise


# Where the cgroup has survived: kubelet may start containers in there.
def _restored(target: KillTarget, limits: tuple[CpuLimit, ...]) -> None:
    if target.cpu is not None and limits and not restore_limits(target.cpu, limits):
        _log.error("CPU limits of %s stay lifted: %s", target.memory_path, ", ".join(each.file for each in limits))


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ActuationError | OSError) else f"{type(error).__name__}: {error}"
