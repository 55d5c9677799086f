"""Carries out the rungs of the ladder that have a way back or need none: brake, reclaim, freeze.

Brake and freeze write through the node's one writer, with its journal: what an agent that was killed has
left is restored from there. Dry run is the writer's.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from koordebpf.act.reclaimer import Reclaimer, ReclaimJob
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.owners import LADDER
from koordebpf.act.writer.places import Places, Unusable, read_held
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import ActuationError, CgroupGone
from koordebpf.kernel.cgroup.files import MIN_QUOTA_US, CgroupFile
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.cgroup.pod_directory import open_pod_directory
from koordebpf.kernel.cgroup.subtree import may_hold
from koordebpf.policy.ladder_settings import Rung
from koordebpf.policy.plan import RungAction, RungPlan
from koordebpf.policy.reconcile import CgroupWrite, DesiredState, FileKey

log = logging.getLogger(__name__)

_FILES = {
    Rung.BRAKE: frozenset({CgroupFile.MEMORY_HIGH, CgroupFile.CPU_QUOTA}),
    Rung.FREEZE: frozenset({CgroupFile.FREEZE}),
}
_DEFAULT_PERIOD_US = 100_000  # kernel/sched: default_cfs_period
_IN_FORCE = frozenset({WriteResult.WRITTEN, WriteResult.DRY_RUN})


def _own_name(uid: str) -> tuple[str, ...]:
    return (uid,)


class PodDirectories(msgspec.Struct, frozen=True):
    """How to find the directory of a pod.

    `hierarchy` is the memory controller's; `path_of` returns the path of a cgroup id below its mount, None where it is
    gone; `names_of` the names that the directory of a pod of this UID may bear.
    """

    hierarchy: MemoryHierarchy
    path_of: Callable[[int], str | None]
    names_of: Callable[[str], tuple[str, ...]] = _own_name


class LadderExecutor:
    """Does to cgroups what a rung says, and undoes it.

    Args:
        directories: of pods.
        writer: of the node. `undo` restores all that the ladder wrote of a rung's files.
        reclaimer: None in a dry run.
        tell: gets what became of each request to reclaim; the writer reports files itself.
    """

    def __init__(
        self,
        directories: PodDirectories,
        places: Places,
        writer: CgroupWriter,
        reclaimer: Reclaimer | None,
        tell: Callable[[FileChange], None],
    ) -> None:
        self._hierarchy = directories.hierarchy
        self._directories = directories
        self._places = places
        self._writer = writer
        self._reclaimer = reclaimer
        self._tell = tell
        self._wanted: dict[FileKey, CgroupWrite] = {}
        self._reason = ""
        self._reclaims: Counter[tuple[str, WriteResult]] = Counter()
        self.frozen_ns: int | None = None  # since when a cgroup may be frozen by this

    @property
    def reclaims(self) -> Counter[tuple[str, WriteResult]]:
        """Every write of memory.reclaim by file name and result since the start; from any thread."""
        return self._reclaims.copy()

    def begin(self, plan: RungPlan, now_ns: int) -> bool:
        """Carry a rung out on every pod it names; return whether anything of it was done, or would be in a dry run.

        A pod whose cgroup is gone has nothing left to be held back.
        """
        pods = list(self._located(plan))
        if plan.rung is Rung.RECLAIM:
            results = [self._reclaim(action, path, plan.text, now_ns) for action, path in pods]
            return any(results)
        writes = self._brakes(pods, now_ns) if plan.rung is Rung.BRAKE else self._freezes(pods)
        if not writes:
            return False
        self._wanted |= {(write.path, write.file): write for write in writes}
        self._reason = plan.text
        if plan.rung is Rung.FREEZE:
            self.frozen_ns = now_ns  # before it is done: should it end halfway, it is thawed in time all the same
        report = self._writer.apply(self._desired(), now_ns, LADDER)
        done = {change.path for change in report.changes if change.result in _IN_FORCE}
        is_started = any(self._places.name((write.path, write.file)) in done for write in writes)
        if not is_started:
            self.undo(plan.rung, now_ns)  # a rung that did not start must not be applied later
        return is_started

    def hold(self, now_ns: int) -> None:
        """See to it that what the rungs hold stays so, and tell what reclaim has brought."""
        if self._wanted:
            self._writer.apply(self._desired(), now_ns, LADDER)
        for change in self._reclaimer.drain() if self._reclaimer else ():
            self._reclaimed(change)

    def undo(self, rung: Rung, now_ns: int) -> None:
        """Restore the files that a rung wrote; idempotent."""
        files = _FILES.get(rung, frozenset())
        self._wanted = {key: write for key, write in self._wanted.items() if write.file not in files}
        self._restore(files, now_ns)
        if rung is Rung.FREEZE:
            self.frozen_ns = None

    def call_off(self) -> None:
        """End reclaim in progress: the next rung is at work."""
        if self._reclaimer:
            self._reclaimer.call_off()

    def close(self, now_ns: int) -> None:
        """Undo everything."""
        self._wanted = {}
        self._restore(frozenset().union(*_FILES.values()), now_ns)
        if self._reclaimer:
            self._reclaimer.close()
            for change in self._reclaimer.drain():
                self._reclaimed(change)

    def _restore(self, files: frozenset[CgroupFile], now_ns: int) -> None:
        try:
            self._writer.restore(now_ns, files, LADDER)
        except OSError as error:
            # It is done; the journal has it still, and it would be done once more.
            log.warning("what was undone could not be put on record: %s", error.strerror)

    def _located(self, plan: RungPlan) -> Iterator[tuple[RungAction, str]]:
        for action in plan.actions:
            path = None if action.cgroup_id is None else self._directories.path_of(action.cgroup_id)
            if path is None:
                continue
            directory, names = self._hierarchy.mount_point / path, self._directories.names_of(action.uid)
            try:
                os.close(open_pod_directory(directory, action.cgroup_id, names))
            except CgroupGone:
                continue
            except ActuationError as error:
                log.error("%s", error)
                continue
            yield action, path

    def _brakes(self, pods: list[tuple[RungAction, str]], now_ns: int) -> list[CgroupWrite]:
        writes = []
        for action, path in pods:
            if self._hierarchy.version == 2:
                write = CgroupWrite(path, CgroupFile.MEMORY_HIGH, action.memory_high_bytes)
            else:
                write = CgroupWrite(path, CgroupFile.CPU_QUOTA, self._quota_us(path, action, now_ns))
            if write.value is not None and self._is_tighter(write, now_ns):
                writes.append(write)
        return writes

    # Never raises a limit: a pod may have a limit of its own that is less.
    def _is_tighter(self, write: CgroupWrite, now_ns: int) -> bool:
        key = (write.path, write.file)
        if key in self._wanted:
            return True
        try:
            held = read_held(self._places, key, now_ns).value
        except Unusable:
            return True  # the writer says why
        return held is None or (isinstance(held, int) and isinstance(write.value, int) and write.value < held)

    def _quota_us(self, path: str, action: RungAction, now_ns: int) -> int | None:
        if action.cpu_quota_percent is None:
            return None
        try:
            period = read_held(self._places, (path, CgroupFile.CPU_PERIOD), now_ns).value
        except Unusable:
            period = None
        period_us = period if isinstance(period, int) else _DEFAULT_PERIOD_US  # v2 has it in cpu.max, as a rule this
        return max(period_us * action.cpu_quota_percent // 100, MIN_QUOTA_US)

    def _freezes(self, pods: list[tuple[RungAction, str]]) -> list[CgroupWrite]:
        return [CgroupWrite(path, CgroupFile.FREEZE, 1) for _, path in pods if not self._is_own(path)]

    # An agent that froze itself could not thaw anything.
    def _is_own(self, path: str) -> bool:
        file = self._places.locate((path, CgroupFile.FREEZE))
        return file is not None and may_hold(file.parent, os.getpid())

    def _reclaim(self, action: RungAction, path: str, reason: str, now_ns: int) -> bool:
        directory: Path = self._hierarchy.mount_point / path
        if action.cgroup_id is None or action.reclaim_bytes is None:
            return False
        job = ReclaimJob(
            directory, action.cgroup_id, action.reclaim_bytes, reason, now_ns, self._directories.names_of(action.uid)
        )
        if not (directory / "memory.reclaim").exists():
            why = "cgroup v1 has none" if self._hierarchy.version == 1 else "it is there since Linux 5.19"
            self._reclaimed(job.change(WriteResult.UNSUPPORTED, why))
            return False
        if self._reclaimer is None:
            self._reclaimed(job.change(WriteResult.DRY_RUN))
        else:
            self._reclaimer.submit(job)
        return True

    def _reclaimed(self, change: FileChange) -> None:
        self._reclaims[Path(change.path).name, change.result] += 1
        self._tell(change)

    def _desired(self) -> DesiredState:
        return DesiredState(self._reason, tuple(self._wanted.values()))
