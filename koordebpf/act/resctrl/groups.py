"""Makes resctrl groups, moves tasks of pods into them, and removes them again.

A group is recorded on disk before it is made, so that the agent after one that was killed removes it. When a group is
removed the kernel gives its tasks back to the default group (rdtgroup_rmdir_ctrl). A task that is made later is in the
group of the task that made it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from koordebpf.act.hooks.task_record import TaskRecord
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.kernel.cgroup.subtree import task_numbers, tasks_of
from koordebpf.policy.resctrl.rules import Members
from koordebpf.units import NS_PER_S

OWNER = "rdtResctrl"
_LOOK_NS = 10 * NS_PER_S  # Why: tasks inherit their group; what is looked for are pods that are new
_MOST_MOVED = 512  # in a round. Why: a write takes 2 µs, and as long again where the task runs on another CPU


class ResctrlGroups:
    """The groups that this agent has made.

    Args:
        root: where resctrl is mounted.
        hierarchy: the mount in which pods' tasks are looked up.
        path: the record on disk; None: a dry run.
        report: gets each group that is made or removed, and what is refused.
    """

    def __init__(self, root: Path, hierarchy: Path, path: Path | None, report: Callable[[FileChange], None]) -> None:
        self._root = root
        self._hierarchy = hierarchy
        self._record = TaskRecord(path, dict[str, int])
        self._report = report
        self._made = self._record.read()  # inode of each group; 0: recorded, and maybe not made
        self._said: set[tuple[str, str]] = set()
        self._looked: tuple[int, tuple[Members, ...]] | None = None
        self.moved = 0  # tasks, since the start

    @property
    def made(self) -> frozenset[str]:
        """The names of those that are recorded."""
        return frozenset(self._made)

    def apply(self, groups: Iterable[str], members: tuple[Members, ...], now_ns: int) -> None:
        """Make these groups, remove others of ours, and move what is not where it is to be: a part in each round."""
        wanted = tuple(groups)
        self._drop_gone()
        for name in [name for name in self._made if name not in wanted]:
            self._remove(name, "its class is not enabled", now_ns)
        for name in wanted:
            if name not in self._made:
                self._make(name, now_ns)
        if self._record.is_dry_run:
            return
        is_due = self._looked is None or self._looked[1] != members or now_ns - self._looked[0] >= _LOOK_NS
        if is_due and self._move(members, now_ns):
            self._looked = now_ns, members

    def restore(self, now_ns: int) -> None:
        """Remove every group that was made; its tasks are in the default group then."""
        self._drop_gone()
        for name in list(self._made):
            self._remove(name, "it was not there before", now_ns)

    # Another process may have removed one, and made another one of its name.
    def _drop_gone(self) -> None:
        there = {name: _inode(self._root / name) for name in self._made}
        kept = {name: inode for name, inode in self._made.items() if inode in (0, there[name])}
        if kept != self._made:
            self._made = kept
            self._record.save(kept)

    def _make(self, name: str, now_ns: int) -> None:
        group = self._root / name
        if self._record.is_dry_run:
            self._say(group, WriteResult.DRY_RUN, now_ns)
            return
        if not self._record.save({**self._made, name: 0}):
            self._say(group, WriteResult.HELD, now_ns, "it could not be recorded")
            return
        try:
            group.mkdir()
        except OSError as error:
            self._record.save(self._made)
            self._say(group, WriteResult.REFUSED, now_ns, errno.errorcode.get(error.errno or 0, str(error)))
            return
        self._made[name] = _inode(group) or 0
        self._record.save(self._made)
        self._report(FileChange(str(group), None, "made", WriteResult.WRITTEN, "resctrl", now_ns, owner=OWNER))

    def _remove(self, name: str, why: str, now_ns: int) -> None:
        group = self._root / name
        if self._record.is_dry_run:
            return
        try:
            group.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._say(group, WriteResult.REFUSED, now_ns, errno.errorcode.get(error.errno or 0, str(error)))
            return
        else:
            self._report(FileChange(str(group), "made", "removed", WriteResult.WRITTEN, why, now_ns, owner=OWNER))
        del self._made[name]
        self._record.save(self._made)

    # Tells whether all that was found is where it is to be.
    def _move(self, members: tuple[Members, ...], now_ns: int) -> bool:
        left = _MOST_MOVED
        for each in members:
            tasks = self._root / each.group / "tasks"
            try:
                fd = os.open(tasks, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                self._say(tasks, WriteResult.REFUSED, now_ns, errno.errorcode.get(error.errno or 0, str(error)))
                continue
            try:
                there = task_numbers(fd)
                for path in each.paths:
                    new = sorted(tasks_of(self._hierarchy / path) - there)
                    for task in new[:left]:
                        self._move_one(fd, tasks, task, now_ns)
                    if len(new) > left:
                        return False
                    left -= len(new)
            finally:
                os.close(fd)
        return True

    def _move_one(self, fd: int, tasks: Path, task: int, now_ns: int) -> None:
        try:
            os.pwrite(fd, f"{task}\n".encode(), 0)
        except ProcessLookupError:
            return  # it has ended
        except OSError as error:
            self._say(tasks, WriteResult.REFUSED, now_ns, errno.errorcode.get(error.errno or 0, str(error)))
            return
        self.moved += 1

    def _say(self, file: Path, result: WriteResult, now_ns: int, detail: str = "") -> None:
        if (str(file), detail) in self._said:
            return
        self._said.add((str(file), detail))
        self._report(FileChange(str(file), None, "made", result, "resctrl", now_ns, detail, owner=OWNER))


def recorded_groups(path: Path) -> frozenset[str]:
    """Return the names of the groups that a record on disk has; nothing is changed."""
    return frozenset(TaskRecord(path, dict[str, int]).read())


def _inode(group: Path) -> int | None:
    try:
        return group.stat().st_ino
    except OSError:
        return None
