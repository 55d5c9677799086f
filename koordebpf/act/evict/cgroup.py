"""Evict by stopping the pod's whole cgroup, and finish a kill that another agent began.

On cgroup v1 a kill freezes the pod for some milliseconds, and a task that is frozen does not die: an agent that was
itself killed meanwhile leaves a pod that neither runs nor ends. A kill is noted before its first signal.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import msgspec

from koordebpf.act.evict.actuator import Actuator, OutcomeQueue
from koordebpf.errors import ActuationError, CgroupGone, KoordebpfError
from koordebpf.kernel.cgroup.freezer import is_frozen, thaw, thaw_at
from koordebpf.kernel.cgroup.hierarchy import held_bytes
from koordebpf.kernel.cgroup.kill import Kill, KillReport, KillTarget, kill_cgroup, raise_thread_priority
from koordebpf.kernel.cgroup.lifted import CpuLimit, lift, limits_of, restore_limits
from koordebpf.kernel.cgroup.pod_directory import open_pod_directory
from koordebpf.kernel.io.closing import have_ended
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.policy.plan import Victim
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import MIB, NS_PER_S, format_bytes, format_ns

# Why: a task in uninterruptible sleep may need its disk; pending release counts it meanwhile
KILL_DEADLINE_NS = 10 * NS_PER_S
_HELD_BYTES = MIB  # less is what an empty cgroup may be charged with
_REFUSALS_SHOWN = 3
_log = logging.getLogger(__name__)
_REAPERS = 2  # Why: the memory of two victims is released in parallel; more would only share the same processors
_CLOSE_S = KILL_DEADLINE_NS / NS_PER_S + 2  # Why: a kill has that long; of many, the later ones end beside the first
_Work = tuple[Victim, int, Kill, tuple[CpuLimit, ...]]


class UnfinishedKill(msgspec.Struct, frozen=True):
    """Who is to be killed, by its pod's UID and its cgroup's identity, and by which decision (CLOCK_MONOTONIC).

    `limits` are those of its CPU that are lifted while it dies.
    """

    uid: str
    namespace: str
    name: str
    decided_ns: int
    target: KillTarget
    limits: tuple[CpuLimit, ...] = ()


def how_it_ended(report: KillReport, target: KillTarget) -> tuple[Result, str]:
    """Return what became of a kill, as an outcome says it. Not done: no process died and the memory stays."""
    if report.refusals:
        who = ", ".join(f"pid {pid}: {why}" for pid, why in report.refusals[:_REFUSALS_SHOWN])
        more = f" and {len(report.refusals) - _REFUSALS_SHOWN} more" if len(report.refusals) > _REFUSALS_SHOWN else ""
        return (
            Result.FAILED,
            f"{report.left_tasks} processes live on, {len(report.refusals)} of which this agent may not signal ({who}"
            f"{more}): its AppArmor profile or SELinux type has to allow that",
        )
    if report.empty_ns is None:
        left = report.left_tasks + report.unseen_tasks
        return Result.FAILED, f"{left} processes still there {format_ns(KILL_DEADLINE_NS)} after the signal"
    if not report.killed_tasks and (held := held_bytes(target.memory_path, target.version)) >= _HELD_BYTES:
        return (
            Result.FAILED,
            f"no process was found in it, and it still holds {format_bytes(held)} that cannot be reclaimed",
        )
    took = format_ns(report.empty_ns - report.signalled_ns)
    return Result.DONE, f"killed {report.killed_tasks} processes by {report.method}, gone {took} after the signal"


def frozen_by(kill: UnfinishedKill) -> Path | None:
    """Return the cgroup that this kill has left frozen; None: it has left nothing.

    Only then it is known to be unfinished, since no process can have started in there again.
    """
    target = kill.target
    path = target.memory_path if target.version == 2 else target.freezer_path
    return path if path is not None and is_frozen(path, target.version) else None


def thaw_left(kill: UnfinishedKill) -> bool:
    """Restore what this kill has left lifted or frozen; tell whether it had left a freeze that could be ended."""
    target = kill.target
    _restore(kill)
    frozen = frozen_by(kill)
    if frozen is None:
        return False
    try:
        fd = open_pod_directory(frozen, target.cgroup_id if target.version == 2 else None, target.pod_names)
    except (ActuationError, CgroupGone, OSError):
        return False
    try:
        return thaw_at(fd, target.version)
    finally:
        os.close(fd)


def _restore(kill: UnfinishedKill) -> None:
    if kill.target.cpu is not None and kill.limits:
        restore_limits(kill.target.cpu, kill.limits)


def finish_kill(kill: UnfinishedKill) -> Outcome | None:
    """Finish a kill that the agent before was ended in the middle of; None: there is nothing to be finished.

    The cgroup's identity is the pod's: kubelet names it after the UID, and the kernel uses no id twice. Where another
    cgroup is in its place, or the kill is refused, what is frozen is thawed.

    Cost:    as `kill_cgroup`, 10 s at most.
    """
    _restore(kill)
    frozen = frozen_by(kill)
    if frozen is None:
        return None
    killed_tasks = sent_ns = None
    try:
        report = kill_cgroup(kill.target, deadline_ns=time.monotonic_ns() + KILL_DEADLINE_NS)
        result, detail = how_it_ended(report, kill.target)
    except CgroupGone:
        result, detail = Result.GONE, "another cgroup is in its place, which is thawed"
    except (KoordebpfError, OSError) as error:
        result, detail = Result.FAILED, f"thawed: {error}"
    else:
        detail = f"the agent before this one was ended in the middle of it, finished now: {detail}"
        killed_tasks, sent_ns = report.killed_tasks, report.signalled_ns
    thaw(frozen, kill.target.version)  # whatever became of it: kubelet may start containers in there
    return Outcome(
        uid=kill.uid,
        namespace=kill.namespace,
        name=kill.name,
        executor="cgroup",
        result=result,
        detail=detail,
        decided_ns=kill.decided_ns,
        sent_ns=sent_ns,
        answered_ns=time.monotonic_ns(),
        killed_tasks=killed_tasks,
    )


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
