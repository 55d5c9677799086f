"""What hooks give the processes of containers: oom_score_adj, and core scheduling cookies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from koordebpf.act.task_record import TaskRecord, TaskReports
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.errors import KoordebpfError, SupportError, os_reason
from koordebpf.kernel.cgroup.subtree import pids
from koordebpf.kernel.proc.tasks import change_score, cookie_of, give_new_cookie, share_cookie
from koordebpf.policy.reconcile import TaskSetting

_MOST_DIRECTORIES = 256  # Why: an init system makes some tens; what a tenant makes beyond costs this agent nothing
_COOKIE_OWNER, _SCORE_OWNER = "coreSched", "oomScoreAdj"


def processes_in(directory: Path) -> tuple[int, set[int]] | None:
    """Return the inode of a cgroup's directory and the processes in it and below; None: it is gone.

    Cost:    40 µs, and 20 for each directory below it.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = pids(fd, _MOST_DIRECTORIES)
        return None if found is None else (os.fstat(fd).st_ino, found - {0})
    except (OSError, KoordebpfError):
        return None
    finally:
        os.close(fd)


# Gives the tasks of containers core scheduling cookies, one for each group, and takes them away again.
#
# New tasks of a container have the cookie of the task that made them. What was given is on disk; an agent that is
# killed between the two leaves a cookie that keeps one process off the cores of others.


class _Cookie(msgspec.Struct, frozen=True):
    inode: int  # of the container's directory
    cookie: int


class CoreCookies:
    """The containers whose tasks have a cookie.

    Args:
        mount_point: of the hierarchy in which processes are looked up.
        path: the record on disk; None: a dry run.
        report: gets each change.
    """

    def __init__(self, mount_point: Path, path: Path | None, report: Callable[[FileChange], None]) -> None:
        self._mount_point = mount_point
        self._record = TaskRecord(path, dict[str, _Cookie])
        self._reports = TaskReports(report, _COOKIE_OWNER)
        self._given = self._record.read()
        self._groups: dict[str, int] = {}  # the cookie of each

    def apply(self, wanted: Iterable[TaskSetting], now_ns: int) -> None:
        """Make containers of one group share a cookie; those of none, and those not named any more, have none."""
        all_settings = [each for each in wanted if each.value]
        named = {each.path for each in all_settings}
        groups: dict[str, list[TaskSetting]] = {}
        for each in all_settings:
            groups.setdefault(str(each.value), []).append(each)
        self._reports.keep_only(named)
        try:
            for path in [path for path in self._given if path not in named]:
                self._remove(path, now_ns)
            for group, settings in groups.items():
                self._share(group, settings, now_ns)
        except SupportError as error:
            for each in all_settings:
                self._report(each, WriteResult.UNSUPPORTED, now_ns, str(error))
        self._groups = {group: cookie for group, cookie in self._groups.items() if group in groups}

    def restore(self, now_ns: int) -> None:
        """Take all cookies away that were given, and remove the record."""
        with contextlib.suppress(SupportError):
            for path in list(self._given):
                self._remove(path, now_ns)
        if not self._given:
            self._record.save({})

    def _share(self, group: str, settings: list[TaskSetting], now_ns: int) -> None:
        cookies: dict[int, int] = {}
        inodes: dict[str, int] = {}
        of: dict[str, set[int]] = {}
        for each in settings:
            if (found := processes_in(self._mount_point / each.path)) is not None:
                inodes[each.path], of[each.path] = found
                cookies |= {pid: cookie for pid in found[1] if (cookie := cookie_of(pid)) is not None}
        known = self._groups.get(group)
        if known is None:  # of the agent before this one
            known = next((self._given[path].cookie for path in of if path in self._given), None)
        leader = next((pid for pid, cookie in sorted(cookies.items()) if cookie and cookie == known), None)
        changed: set[int] = set()
        if leader is None and cookies:
            if self._record.is_dry_run:
                for each in settings:
                    self._report(each, WriteResult.DRY_RUN, now_ns)
                return
            leader = min(cookies)
            known = give_new_cookie(leader)
            changed.add(leader)
        if leader is None or known is None:
            return
        self._groups[group] = known
        others = [pid for pid, cookie in cookies.items() if cookie != known and pid != leader]
        given = {path: _Cookie(inodes[path], known) for path, pids in of.items() if pids & cookies.keys()}
        self._keep({**self._given, **given})
        if others:
            share_cookie(leader, others)
        for each in settings:
            if of.get(each.path, set()) & (changed | set(others)):
                self._report(each, WriteResult.WRITTEN, now_ns)

    def _remove(self, path: str, now_ns: int) -> None:
        given = self._given[path]
        directory = self._mount_point / path
        found = processes_in(directory)
        if found is not None and found[0] == given.inode:
            pids = [pid for pid in found[1] if cookie_of(pid) == given.cookie]
            share_cookie(None, pids)
            if pids:
                self._reports.report_restored(directory, "cookie", "no cookie", "it had no cookie before", now_ns)
        self._keep({each: kept for each, kept in self._given.items() if each != path})

    # Where it cannot be on disk it is remembered all the same: this agent takes away what it has given.
    def _keep(self, given: dict[str, _Cookie]) -> None:
        if given != self._given:
            self._record.save(given)
            self._given = given

    def _report(self, setting: TaskSetting, result: WriteResult, now_ns: int, detail: str = "") -> None:
        values = None, f"cookie of {setting.value}"
        self._reports.report(setting, self._mount_point / setting.path, values, result, now_ns, detail)


# Sets oom_score_adj of the processes of containers, and puts back what they had.
#
# A process inherits it from the one that made it, so that one number for each container says what they all had. It is
# on disk before the first process is changed.


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
        self._reports = TaskReports(report, _SCORE_OWNER)
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
