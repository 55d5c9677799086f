"""A kill by cgroup as it is noted before its first signal, and what an agent does about one that it did not begin.

On cgroup v1 a kill freezes the pod for some milliseconds, and a task that is frozen does not die: an agent that was
itself killed meanwhile leaves a pod that neither runs nor ends.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from koordebpf.errors import ActuationError, CgroupGone, KoordebpfError
from koordebpf.kernel.cgroup.freezer import is_frozen, thaw, thaw_at
from koordebpf.kernel.cgroup.hierarchy import held_bytes
from koordebpf.kernel.cgroup.kill import KillReport, KillTarget, kill_cgroup
from koordebpf.kernel.cgroup.lifted import CpuLimit, restore_limits
from koordebpf.kernel.cgroup.pod_directory import open_pod_directory
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import MIB, NS_PER_S, format_bytes, format_ns

# Why: a task in uninterruptible sleep may need its disk; pending release counts it meanwhile
KILL_DEADLINE_NS = 10 * NS_PER_S
_HELD_BYTES = MIB  # less is what an empty cgroup may be charged with
_REFUSALS_SHOWN = 3


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
