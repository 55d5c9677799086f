"""Makes resctrl groups, moves tasks of pods into them, and removes them again.

A group is recorded on disk before it is made, so that the agent after one that was killed removes it. When a group is
removed the kernel gives its tasks back to the default group (rdtgroup_rmdir_ctrl). A task that is made later is in the
group of the task that made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from koordebpf.act.task_record import TaskRecord
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.foreign import Corrections, ForeignPolicy
from koordebpf.errors import errno_name
from koordebpf.kernel.cgroup.files import Sysctl
from koordebpf.kernel.cgroup.subtree import task_numbers, tasks_of
from koordebpf.strategies.resctrl.decide import Members
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
        self._corrections = Corrections(ForeignPolicy())  # of groups that another process removes
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
        self._drop_gone(now_ns)
        for name in [name for name in self._made if name not in wanted]:
            self._remove(name, "its class is not enabled", now_ns)
        for name in wanted:
            if name not in self._made and not self._corrections.is_yielded((name, Sysctl.RESCTRL_SCHEMATA), now_ns):
                self._make(name, now_ns)
        if self._record.is_dry_run:
            return
        is_due = self._looked is None or self._looked[1] != members or now_ns - self._looked[0] >= _LOOK_NS
        if is_due and self._move(members, now_ns):
            self._looked = now_ns, members

    def restore(self, now_ns: int) -> None:
        """Remove every group that was made; its tasks are in the default group then."""
        self._drop_gone(now_ns)
        for name in list(self._made):
            self._remove(name, "it was not there before", now_ns)

    # Another process may have removed one, and made another one of its name. One that an agent had recorded when it was
    # killed may never have been made.
    def _drop_gone(self, now_ns: int) -> None:
        there = {name: _inode(self._root / name) for name in self._made}
        kept = {name: inode for name, inode in there.items() if inode and self._made[name] in (0, inode)}
        if kept == self._made:
            return
        for name in [name for name, inode in self._made.items() if inode and name not in kept]:
            if not self._corrections.may_correct((name, Sysctl.RESCTRL_SCHEMATA), now_ns):
                why = "another process keeps removing it: left to it for an hour"
                group = str(self._root / name)
                self._report(FileChange(group, None, "made", WriteResult.YIELDED, "resctrl", now_ns, why, owner=OWNER))
        self._made = kept
        self._record.save(kept)

    def _make(self, name: str, now_ns: int) -> None:
        group = self._root / name
        if self._record.is_dry_run:
            self._report_file(group, WriteResult.DRY_RUN, now_ns)
            return
        if not self._record.save({**self._made, name: 0}):
            self._report_file(group, WriteResult.HELD, now_ns, "it could not be recorded")
            return
        try:
            group.mkdir()
        except OSError as error:
            self._record.save(self._made)
            self._report_file(group, WriteResult.REFUSED, now_ns, errno_name(error))
            return
        self._made[name] = _inode(group)
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
            self._report_file(group, WriteResult.REFUSED, now_ns, errno_name(error))
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
                count = self._move_into(tasks, each.paths, left, now_ns)
            except OSError as error:
                self._refused(tasks, error, now_ns)
                continue
            if count > left:
                return False
            left -= count
        return True

    # Returns how many tasks were to be moved; no more than `most` are.
    def _move_into(self, tasks: Path, paths: Iterable[str], most: int, now_ns: int) -> int:
        count = 0
        fd = os.open(tasks, os.O_RDWR | os.O_CLOEXEC)
        try:
            there = task_numbers(fd)
            for path in paths:
                new = sorted(tasks_of(self._hierarchy / path) - there)
                for task in new[: most - count]:
                    self._move_one(fd, tasks, task, now_ns)
                count += len(new)
                if count > most:
                    break
        finally:
            os.close(fd)
        return count

    def _move_one(self, fd: int, tasks: Path, task: int, now_ns: int) -> None:
        try:
            os.pwrite(fd, f"{task}\n".encode(), 0)
        except ProcessLookupError:
            return  # it has ended
        except OSError as error:
            self._refused(tasks, error, now_ns)
            return
        self.moved += 1

    def _refused(self, tasks: Path, error: OSError, now_ns: int) -> None:
        if tasks.parent.is_dir():
            self._report_file(tasks, WriteResult.REFUSED, now_ns, errno_name(error))
        else:
            self._report_file(tasks, WriteResult.GONE, now_ns, "the group is gone")

    def _report_file(self, file: Path, result: WriteResult, now_ns: int, detail: str = "") -> None:
        if (str(file), detail) in self._said:
            return
        self._said.add((str(file), detail))
        self._report(FileChange(str(file), None, "made", result, "resctrl", now_ns, detail, owner=OWNER))


def recorded_groups(path: Path) -> frozenset[str]:
    """Return the names of the groups that a record on disk has; nothing is changed."""
    return frozenset(TaskRecord(path, dict[str, int]).read())


# 0: there is none.
def _inode(group: Path) -> int:
    try:
        return group.stat().st_ino
    except OSError:
        return 0
