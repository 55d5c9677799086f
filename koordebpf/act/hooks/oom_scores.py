"""Sets oom_score_adj of the processes of containers, and puts back what they had.

A process inherits it from the one that made it, so that one number for each container says what they all had. It is on
disk before the first process is changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from koordebpf.act.hooks.processes import processes_in
from koordebpf.act.hooks.task_record import TaskRecord, TaskReports
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.errors import os_reason
from koordebpf.kernel.proc.oom_score import change_score
from koordebpf.policy.hooks.writes import TaskSetting

OWNER = "oomScoreAdj"


class _Score(msgspec.Struct, frozen=True):
    inode: int  # of the container's directory
    before: int  # what its processes had
    value: int


class OomScores:
    """The processes of containers that have a score of their own.

    Args:
        mount_point: of the hierarchy in which processes are looked up.
        path: the record on disk; None: a dry run.
        report: gets each change.
    """

    def __init__(self, mount_point: Path, path: Path | None, report: Callable[[FileChange], None]) -> None:
        self._mount_point = mount_point
        self._record = TaskRecord(path, dict[str, _Score])
        self._reports = TaskReports(report, OWNER)
        self._scores = self._record.read()

    def apply(self, wanted: Iterable[TaskSetting], now_ns: int) -> None:
        """Make the processes of these containers have their score, and those of all others what they had."""
        by_path = {each.path: (each, each.value) for each in wanted if isinstance(each.value, int)}
        for path in [path for path in self._scores if path not in by_path]:
            self._put_back(path, now_ns)
        self._reports.keep_only(by_path)
        for setting, score in by_path.values():
            self._set(setting, score, now_ns)

    def restore(self, now_ns: int) -> None:
        """Put back what all of them had, and remove the record."""
        for path in list(self._scores):
            self._put_back(path, now_ns)
        if not self._scores:
            self._record.save({})

    def _set(self, setting: TaskSetting, score: int, now_ns: int) -> None:
        path = setting.path
        found = processes_in(self._mount_point / path)
        if found is None:
            return
        inode, processes = found
        name = path.rpartition("/")[2]
        known = self._scores.get(path)
        if known is not None and known.inode != inode:
            known = None
        for pid in sorted(processes):
            before = _score_of(pid)
            if before is None or before == score:
                continue
            file, values = _file_of(pid), (str(before), str(score))
            if self._record.is_dry_run:
                self._reports.report(setting, file, values, WriteResult.DRY_RUN, now_ns)
                continue
            if known is None or known.value != score:
                known = _Score(inode, known.before if known else before, score)
                if not self._keep({**self._scores, path: known}):
                    return
            try:
                if change_score(pid, name, score) is not None:
                    self._reports.report(setting, file, values, WriteResult.WRITTEN, now_ns)
            except OSError as error:
                self._reports.report(setting, file, values, WriteResult.REFUSED, now_ns, os_reason(error))

    def _put_back(self, path: str, now_ns: int) -> None:
        known = self._scores[path]
        found = processes_in(self._mount_point / path)
        if found is not None and found[0] == known.inode:
            for pid in found[1]:
                with contextlib.suppress(OSError):  # a lower score, without the right: it stays
                    if change_score(pid, path.rpartition("/")[2], known.before, only_from=known.value) == known.value:
                        values = str(known.value), str(known.before)
                        reason = "it held this before the first write"
                        self._reports.report_restored(_file_of(pid), *values, reason, now_ns)
        self._keep({each: score for each, score in self._scores.items() if each != path})

    def _keep(self, scores: dict[str, _Score]) -> bool:
        if not self._record.save(scores):
            return False
        self._scores = scores
        return True


def _file_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/oom_score_adj")


def _score_of(pid: int) -> int | None:
    try:
        return int(_file_of(pid).read_bytes())
    except (OSError, ValueError):
        return None
