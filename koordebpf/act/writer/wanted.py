"""What the strategies of a node want of files now, each by its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.places import Held
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.policy.reconcile.demands import Demand, joined, owners_of
from koordebpf.policy.reconcile.values import DesiredState, FileKey


class Call(msgspec.Struct):
    """What one call of the writer is about, and what it has found.

    `beside`: files that are read and not written. `quota_refused`: on v1, maybe for a larger one below, which are
    looked at then (`looks_below`).
    """

    owner: str
    now_ns: int
    wanted: Mapping[FileKey, Value]
    looked: list[FileKey] = msgspec.field(default_factory=list)
    changes: list[FileChange] = msgspec.field(default_factory=list)
    beside: dict[FileKey, Held] = msgspec.field(default_factory=dict)
    corrected: set[FileKey] = msgspec.field(default_factory=set)
    quota_refused: bool = False
    looks_below: bool = False


class Wanted:
    """The last desired state of each owner, and what they come to together: `values`."""

    def __init__(self, precedence: tuple[str, ...] = ()) -> None:
        self._precedence = precedence
        self._states: dict[str, DesiredState] = {}
        self._demands: dict[FileKey, Demand] = {}
        self._of: dict[str, tuple[tuple[FileKey, Value], ...]] = {}
        self.values: Mapping[FileKey, Value] = {}

    def take(self, desired: DesiredState, owner: str) -> bool:
        """Put what an owner wants in place of what it wanted before; return whether any value may differ.

        Raises:  ConfigError: a value that its file cannot hold.
        """
        before = self._states.get(owner)
        is_same = before is not None and (desired.writes, desired.sysctls) == (before.writes, before.sysctls)
        if not is_same:
            states, last = self._states | {owner: desired}, len(self._precedence)
            rank = {owner: at for at, owner in enumerate(self._precedence)}
            self._demands = joined(dict(sorted(states.items(), key=lambda each: rank.get(each[0], last))))
            self.values = {key: demand.value for key, demand in self._demands.items()}
            self._of.clear()
        self._states[owner] = desired  # also for its reason
        return not is_same

    def withdraw(self, owner: str | None, files: Collection[CgroupFile] | None) -> None:
        """Forget what an owner wants, or all of them: of these files, or of every file."""
        for each in list(self._states) if owner is None else [owner]:
            state = self._states.get(each)
            if state is not None and files is not None:
                kept = tuple(write for write in state.writes if write.file not in files)
                self.take(msgspec.structs.replace(state, writes=kept), each)
            else:
                self.take(DesiredState(""), each)

    def of(self, owner: str) -> tuple[tuple[FileKey, Value], ...]:
        """Return the files that an owner wants something of, and what they are to hold."""
        found = self._of.get(owner)
        if found is None:
            of_owner = ((key, demand.value) for key, demand in self._demands.items() if owner in demand.owners)
            found = self._of[owner] = tuple(of_owner)
        return found

    def owners(self, key: FileKey) -> tuple[str, ...]:
        """Return those that have a file written; cpu.idle resets the shares beside it."""
        path, file = key
        other = (path, CgroupFile.CPU_IDLE) if file is CgroupFile.CPU_SHARES and key not in self._demands else key
        return tuple(filter(None, owners_of(other, self._demands)))

    def winner(self, key: FileKey, otherwise: str) -> str:
        """Return the owner whose value a file gets."""
        return next(iter(owners_of(key, self._demands)), otherwise)

    def reason(self, owner: str) -> str:
        """Return why an owner wants its files so, as it said last."""
        return self._states[owner].reason
