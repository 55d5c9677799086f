"""Gives the tasks of containers core scheduling cookies, one for each group, and takes them away again.

New tasks of a container have the cookie of the task that made them. What was given is on disk; an agent that is killed
between the two leaves a cookie that keeps one process off the cores of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from koordebpf.act.hooks.processes import processes_in
from koordebpf.act.hooks.task_record import TaskRecord, TaskReports
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.errors import SupportError
from koordebpf.kernel.proc.core_sched import cookie_of, give_new_cookie, share_cookie
from koordebpf.policy.hooks.writes import TaskSetting

OWNER = "coreSched"


class _Given(msgspec.Struct, frozen=True):
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
        self._record = TaskRecord(path, dict[str, _Given])
        self._reports = TaskReports(report, OWNER)
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
                self._take(path, now_ns)
            for group, settings in groups.items():
                self._share(group, settings, now_ns)
        except SupportError as error:
            for each in all_settings:
                self._say(each, WriteResult.UNSUPPORTED, now_ns, str(error))
        self._groups = {group: cookie for group, cookie in self._groups.items() if group in groups}

    def restore(self, now_ns: int) -> None:
        """Take all cookies away that were given, and remove the record."""
        with contextlib.suppress(SupportError):
            for path in list(self._given):
                self._take(path, now_ns)
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
                    self._say(each, WriteResult.DRY_RUN, now_ns)
                return
            leader = min(cookies)
            known = give_new_cookie(leader)
            changed.add(leader)
        if leader is None or known is None:
            return
        self._groups[group] = known
        others = [pid for pid, cookie in cookies.items() if cookie != known and pid != leader]
        given = {path: _Given(inodes[path], known) for path, pids in of.items() if pids & cookies.keys()}
        self._keep({**self._given, **given})
        if others:
            share_cookie(leader, others)
        for each in settings:
            if of.get(each.path, set()) & (changed | set(others)):
                self._say(each, WriteResult.WRITTEN, now_ns)

    def _take(self, path: str, now_ns: int) -> None:
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
    def _keep(self, given: dict[str, _Given]) -> None:
        if given != self._given:
            self._record.save(given)
            self._given = given

    def _say(self, setting: TaskSetting, result: WriteResult, now_ns: int, detail: str = "") -> None:
        values = None, f"cookie of {setting.value}"
        self._reports.report(setting, self._mount_point / setting.path, values, result, now_ns, detail)
