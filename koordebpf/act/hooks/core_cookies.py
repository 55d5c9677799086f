"""Gives the tasks of containers core scheduling cookies, one for each group, and takes them away again.

New tasks of a container have the cookie of the task that made them. What was given is on disk; an agent that is killed
between the two leaves a cookie that keeps one process off the cores of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from koordebpf.act.hooks.processes import processes_in
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import this_boot
from koordebpf.errors import SupportError
from koordebpf.kernel.proc.core_sched import cookie_of, give_new_cookie, share_cookie
from koordebpf.policy.hooks.writes import TaskSetting

COOKIES = "core-cookies.json"  # beside the journal of the writer
OWNER = "coreSched"


class _Given(msgspec.Struct, frozen=True):
    inode: int  # of the container's directory
    cookie: int


class _Kept(msgspec.Struct, frozen=True):
    boot_id: str
    given: dict[str, _Given]


class CoreCookies:
    """The containers whose tasks have a cookie.

    Args:
        mount_point: of the hierarchy in which processes are looked up.
        path: the record on disk; None: a dry run.
        report: gets each change.
    """

    def __init__(self, mount_point: Path, path: Path | None, report: Callable[[FileChange], None]) -> None:
        self._mount_point = mount_point
        self._path = path
        self._report = report
        self._boot_id = this_boot()
        self._given = _read(path, self._boot_id)
        self._groups: dict[str, int] = {}  # the cookie of each
        self._said: set[tuple[str, str]] = set()

    def apply(self, wanted: Iterable[TaskSetting], now_ns: int) -> None:
        """Make containers of one group share a cookie; those of none, and those not named any more, have none."""
        groups: dict[str, list[TaskSetting]] = {}
        named: set[str] = set()
        for each in wanted:
            if each.value:
                groups.setdefault(str(each.value), []).append(each)
                named.add(each.path)
        self._said = {each for each in self._said if each[0] in named}
        try:
            for path in [path for path in self._given if path not in named]:
                self._take(path, now_ns)
            for group, settings in groups.items():
                self._share(group, settings, now_ns)
        except SupportError as error:
            for each in (each for settings in groups.values() for each in settings):
                self._say(each, WriteResult.UNSUPPORTED, now_ns, str(error))
        self._groups = {group: cookie for group, cookie in self._groups.items() if group in groups}

    def restore(self, now_ns: int) -> None:
        """Take all cookies away that were given, and remove the record."""
        with contextlib.suppress(SupportError):
            for path in list(self._given):
                self._take(path, now_ns)
        if self._path is not None and not self._given:
            self._path.unlink(missing_ok=True)

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
            if self._path is None:
                for each in settings:
                    self._say(each, WriteResult.DRY_RUN, now_ns, "")
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
                self._say(each, WriteResult.WRITTEN, now_ns, "")

    def _take(self, path: str, now_ns: int) -> None:
        given = self._given[path]
        found = processes_in(self._mount_point / path)
        if found is not None and found[0] == given.inode:
            pids = [pid for pid in found[1] if cookie_of(pid) == given.cookie]
            share_cookie(None, pids)
            if pids:
                reason = "it had no cookie before"
                where = str(self._mount_point / path)
                self._report(FileChange(where, "cookie", "no cookie", WriteResult.WRITTEN, reason, now_ns, owner=OWNER))
        self._keep({each: kept for each, kept in self._given.items() if each != path})

    def _keep(self, given: Mapping[str, _Given]) -> None:
        if self._path is None or given == self._given:
            return
        part = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):
            if given:
                part.write_bytes(msgspec.json.encode(_Kept(self._boot_id, dict(given))))
                part.rename(self._path)
            else:
                self._path.unlink(missing_ok=True)
        self._given = dict(given)

    def _say(self, setting: TaskSetting, result: WriteResult, now_ns: int, detail: str) -> None:
        key = (setting.path, f"{result.value} {setting.value} {detail}")
        if result is not WriteResult.WRITTEN:
            if key in self._said:
                return
            self._said.add(key)
        self._report(
            FileChange(
                path=str(self._mount_point / setting.path),
                old=None,
                new=f"cookie of {setting.value}",
                result=result,
                reason=f"{setting.source} of pod {setting.pod}",
                now_ns=now_ns,
                detail=detail,
                owner=OWNER,
            )
        )


def _read(path: Path | None, boot_id: str) -> dict[str, _Given]:
    if path is None:
        return {}
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        if kept.boot_id == boot_id:
            return kept.given
    return {}
