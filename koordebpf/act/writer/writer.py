"""The writer: what every strategy desires in, changes out. One for a node, with one journal and an owner per file."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping

import msgspec

from koordebpf.act.writer.change import Failure, FileChange, WriteReport, WriteResult
from koordebpf.act.writer.foreign import Corrections
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.originals import Originals, touches
from koordebpf.act.writer.overwritten import Overwritten
from koordebpf.act.writer.owners import withdrawal
from koordebpf.act.writer.places import Held, Places, Unusable, beside, read_held, written
from koordebpf.act.writer.quotas import CappedQuotas, CutQuotas
from koordebpf.act.writer.restore import RestoreReport, restore
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.lifted import is_lifted
from koordebpf.policy.reconcile import Demand, DesiredState, FileKey, PlannedWrite, joined, owners_of, plan_writes

log = logging.getLogger("koordebpf")
Files = Collection[CgroupFile] | None


class ChangeLog:
    """What became of every attempt since the start. `audit` gets each change as it happens; None: nothing does."""

    def __init__(self, audit: Callable[[FileChange], None] | None) -> None:
        self._audit = audit
        self._counts: dict[str, Counter[tuple[str, WriteResult]]] = defaultdict(Counter)

    @property
    def counts(self) -> Counter[tuple[str, WriteResult]]:
        """Every attempt by file name and result; from any thread."""
        return sum((each.copy() for each in self._counts.copy().values()), Counter())

    def counts_of(self, owner: str) -> Counter[tuple[str, WriteResult]]:
        """The attempts for one owner."""
        return self._counts[owner]

    def count(self, owner: str, file: str, result: WriteResult) -> None:
        """Count an attempt that is no news."""
        self._counts[owner][file, result] += 1

    def add(self, change: FileChange, file: str) -> None:
        """Count an attempt for its owner and report it."""
        self.count(change.owner, file, change.result)
        if self._audit is not None:
            self._audit(change)


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

    def replace(self, desired: DesiredState, owner: str) -> bool:
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
                self.replace(msgspec.structs.replace(state, writes=kept), each)
            else:
                self.replace(DesiredState(""), each)

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


class CgroupWriter:
    """Makes files hold what is desired. Dry run is the default: nothing is written without `enforce`.

    `journal` has the originals; each is on disk before its file is written for the first time. `audit` gets each change
    as it happens. `seen` has what files held. `precedence` are owners, the first wins where only one can. `overwritten`
    reports slices that systemd resets; without it these are seen when they are looked at again.
    """

    def __init__(
        self,
        places: Places,
        journal: Journal | None,
        settings: WriterSettings | None = None,
        *,
        enforce: bool = False,
        audit: Callable[[FileChange], None] | None = None,
        precedence: tuple[str, ...] = (),
    ) -> None:
        if enforce and journal is None:
            raise ConfigError("journal", NOT_GIVEN, "must be given where files are written, to restore them")
        if journal is not None and journal.lost_lines:
            why = "%s: %d lines could not be read: these files are not restored"
            log.warning(why, journal.path, journal.lost_lines)
        self._places = places
        self._journal = journal if enforce else None
        self._originals = Originals(places, self._journal)
        self.seen = self._originals.seen
        self._settings = settings or WriterSettings()
        self._changes = ChangeLog(audit)
        self._held: dict[FileKey, Held] = {}
        self._failures: dict[FileKey, Failure] = {}
        self._corrections = Corrections(self._settings.foreign)
        is_nested = places.versions.get("cpu") == 1  # no quota may be more than its parent's
        self._cut = CutQuotas(places, journal) if enforce and journal is not None and is_nested else None
        self._wanted = Wanted(precedence)
        self.overwritten: Overwritten | None = None

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing is ever written."""
        return self._journal is None

    @property
    def is_journalled(self) -> bool:
        """Whether any file is to be restored."""
        return self._journal is not None and bool(self._journal.originals)

    @property
    def yielded(self) -> Mapping[FileKey, int]:
        """Files that are left to another process, and until when."""
        return self._corrections.yielded

    @property
    def counts(self) -> Counter[tuple[str, WriteResult]]:
        """Every attempt by file name and result since the start."""
        return self._changes.counts

    def counts_of(self, owner: str) -> Counter[tuple[str, WriteResult]]:
        """The attempts for one owner."""
        return self._changes.counts_of(owner)

    def apply(self, desired: DesiredState, now_ns: int, owner: str = "") -> WriteReport:
        """Make the files hold what is desired; say what was changed, and what could not be.

        `desired` is all that the owner wants now: its other files are forgotten and stay as they are. What a file held
        at first stays in the journal. Where several owners want a file, `policy.reconcile` says who wins.

        Raises:  ConfigError: a value that its file cannot hold.
        """
        self._replace(desired, owner)
        gone = self._originals.drop_gone(self._wanted.values, now_ns)
        if gone and self._cut is not None:
            self._cut.forget(gone)
        changes = self._set_right(self._due(now_ns, owner), now_ns, owner)
        if changes:
            changes += self._set_right_overwritten(now_ns)
        return WriteReport(tuple(changes))

    def correct(self, now_ns: int) -> WriteReport:
        """Make slices that another process wrote since hold what is desired, as `apply` says of other files."""
        is_due = self.overwritten is not None and self.overwritten.is_due
        return WriteReport(tuple(self._set_right_overwritten(now_ns)) if is_due else ())

    def restore(
        self, now_ns: int, files: Files = None, owner: str | None = None, *, unwanted: bool = False, wait_s: float = 0
    ) -> RestoreReport:
        """Restore every file that was ever written; in a dry run there is none.

        What another process has changed since it was last read stays as it is, and so does a file that another owner
        still wants. A quota that does not fit below another owner's is restored as far as it fits and stays journalled.

        Args:
            now_ns: CLOCK_MONOTONIC.
            files: only these, of every cgroup.
            owner: only what this one has written.
            unwanted: only what the owner wants no more.
            wait_s: as `restore` of this package has it: at the end of an agent.
        Raises:  OSError: it is done and could not be journalled; it would be done once more.
        """
        if not unwanted:
            self._wanted.withdraw(owner, files)
        if self._journal is None:
            return RestoreReport()
        kept = {key for key, _ in self._wanted.of(owner or "")}
        written = {key: each for key, each in self._journal.originals.items() if key not in kept}
        ended = withdrawal(written, owner, files, self._wanted.values)
        for key in (*ended.restored, *ended.shared):
            self._held.pop(key, None)
            self._failures.pop(key, None)
        self._places.keep_open(self._held)
        last, cut = self.seen.last, self._cut
        capped = cut.restore_capped(ended.restored, now_ns, last) if cut is not None else CappedQuotas()
        whole = {key: each for key, each in ended.restored.items() if key not in capped.originals}
        report = restore(self._places, whole, now_ns, enforce=True, last=last, wait_s=wait_s)
        report = msgspec.structs.replace(report, changes=(*capped.changes, *report.changes))
        keys = (*capped.originals, *report.done, *report.left)
        files_by_path = {self._places.name(key): key[1].value for key in keys}
        for change in report.changes:
            self._changes.add(msgspec.structs.replace(change, owner=owner or ""), files_by_path[change.path])
        self.seen.forget((*capped.originals, *report.done))
        self._journal.forget(report.done)
        self._journal.record(ended.shared | capped.originals)
        return report

    def _set_right_overwritten(self, now_ns: int) -> list[FileChange]:
        found = self.overwritten.poll(self._held) if self.overwritten is not None else []
        keys = [key for key in found if not self._is_left_alone(key, self._wanted.values[key], now_ns)]
        return self._set_right(keys, now_ns, self._wanted.winner(keys[0], "")) if keys else []

    def _set_right(self, keys: Collection[FileKey], now_ns: int, owner: str) -> list[FileChange]:
        call = Call(owner, now_ns, self._wanted.values)
        for key in keys:
            self._read(call, key)
        if keys:
            self._carry_out(call)
        if call.quota_refused:
            call.looks_below = True
            self._carry_out(call)
        return call.changes

    def _replace(self, desired: DesiredState, owner: str) -> None:
        if not self._wanted.replace(desired, owner):
            return
        for known in (self._held, self._failures):
            for key in [key for key in known if key not in self._wanted.values]:
                del known[key]
        self._places.keep_open(self._held)

    # What differs, and of what was all right the part that has waited longest, so that no call takes long.
    def _due(self, now_ns: int, owner: str) -> list[FileKey]:
        due, aged = [], []
        old_ns = now_ns - self._settings.refresh_ns
        for key, value in self._wanted.of(owner):
            held = self._held.get(key)
            if held is not None and held.satisfies == (value,):
                if held.checked_ns <= old_ns and not is_lifted(key[0]):
                    aged.append((held.checked_ns, key))
            elif not self._is_left_alone(key, value, now_ns):
                due.append(key)
        aged.sort(key=lambda entry: entry[0])
        return due + [key for _, key in aged[: self._settings.looks_per_call]]

    def _is_left_alone(self, key: FileKey, value: Value, now_ns: int) -> bool:
        if self._corrections.is_yielded(key, now_ns) or is_lifted(key[0]):
            return True
        failure = self._failures.get(key)
        return failure is not None and failure.is_final(value, now_ns)

    def _read(self, call: Call, key: FileKey) -> None:
        before = self._held.pop(key, None)
        try:
            held = self._held[key] = self._originals.read(key, call.now_ns, before)
        except Unusable as error:
            self._fail(call, key, None, error.result, error.detail)
            return
        call.looked.append(key)
        if before is not None and before.is_ours and before.inode == held.inode:
            held.is_ours = held.value == before.value
            if not held.is_ours and not self._may_correct(call, key, held, before.value):
                del self._held[key]
                return
        if self._is_right(call, key, held):
            held.satisfies = (call.wanted[key],)
            self._failures.pop(key, None)

    def _is_right(self, call: Call, key: FileKey, held: Held) -> bool:
        return self._places.is_held(key, held.value, self._originals.target(key, call.wanted[key], held))

    # Another process has changed the file since it was written here.
    def _may_correct(self, call: Call, key: FileKey, held: Held, ours: Value) -> bool:
        is_reset = self._originals.is_reset(key, held)
        error = None if is_reset else self._originals.adopt(key, ours, held)
        if self._is_right(call, key, held) or not touches(call.wanted[key], ours, held.value):
            return True
        if self._corrections.may_correct(key, call.now_ns, is_reset=is_reset):
            call.corrected.add(key)
            if error is not None:
                self._hold_back(call, key, error)
            return error is None
        if self._journal is not None:
            with contextlib.suppress(OSError):  # the original stays in the journal then
                self._journal.forget([key])
        self._fail(call, key, held, WriteResult.YIELDED, "another process keeps writing it: left to it for an hour")
        return False

    def _carry_out(self, call: Call) -> None:
        steps = self._plan(call)
        if self._journal_originals(call, steps):
            for step in steps:
                self._write(call, step)

    def _plan(self, call: Call) -> tuple[PlannedWrite, ...]:
        differing = {
            key: self._originals.target(key, value, self._held[key])
            for key, value in call.wanted.items()
            if key in self._held
            and self._held[key].satisfies != (value,)
            and not self._is_left_alone(key, value, call.now_ns)
        }
        if not differing:
            return ()
        differing |= self._fit_quotas(call, differing)
        for key in differing:
            other = beside(key, self._places.versions)
            if other is None or other in self._held:
                continue
            try:
                call.beside[other] = read_held(self._places, other, call.now_ns)
            except Unusable:
                continue
        current = {key: held.value for key, held in (call.beside | self._held).items()}
        plan = plan_writes(current, differing, self._places.versions)
        for block in plan.blocked:
            self._fail(call, block.key, self._held[block.key], WriteResult.BLOCKED, block.why)
        return plan.writes

    def _fit_quotas(self, call: Call, differing: Mapping[FileKey, Value]) -> dict[FileKey, Value]:
        paths = [path for path, file in differing if file is CgroupFile.CPU_QUOTA]
        if self._cut is None or not paths:
            return {}
        # What another process wrote into one below is its own first.
        for key in self._cut.below(paths, self._held):
            if key in self._wanted.values and key not in call.looked:
                self._read(call, key)
        # A wanted one that was cut to what is wanted above it leaves less to those below it.
        wanted = {
            key: call.wanted.get(key, each)
            for key, each in self._wanted.values.items()
            if not self._corrections.is_yielded(key, call.now_ns)
        }
        held, fitting = self._cut.fit(wanted, paths, call.now_ns, search=call.looks_below)
        for key in held.keys() - (wanted.keys() & self._held.keys()):
            self._held[key] = held[key]
            self.seen.record(key, held[key].value)
        call.wanted = {**call.wanted, **fitting}
        return fitting

    # Tells whether the files may be written now.
    def _journal_originals(self, call: Call, steps: tuple[PlannedWrite, ...]) -> bool:
        if self._journal is None:
            for step in steps:
                if step.is_final:
                    self._fail(call, step.key, self._held[step.key], WriteResult.DRY_RUN, "")
            return False
        values: dict[FileKey, Value] = {step.key: step.value for step in steps}
        # The kernel resets them.
        values |= {(path, CgroupFile.CPU_SHARES): None for path, file in values if file is CgroupFile.CPU_IDLE}
        try:
            self._originals.record(call.beside | self._held, values, self._wanted.owners, call.looked)
        except OSError as error:
            for step in steps:
                if step.is_final:
                    self._hold_back(call, step.key, error)
            return False
        return True

    def _hold_back(self, call: Call, key: FileKey, error: OSError) -> None:
        detail = f"what it held could not be put on record: {error.strerror}"
        self._fail(call, key, self._held.get(key), WriteResult.HELD, detail)

    def _write(self, call: Call, step: PlannedWrite) -> None:
        held = self._held.get(step.key)
        if held is None:
            return  # an earlier step failed
        texts = self._places.writes(step.key, held.value, step.value)
        old, text, done = held.text, "\n".join(texts), list[str]()
        try:
            after = written(self._places, step.key, held, texts, call.now_ns, done.append)
        except Unusable as error:
            is_quota = self._cut is not None and step.key[1] is CgroupFile.CPU_QUOTA
            if error.result is WriteResult.YIELDED:
                self._read(call, step.key)  # and written in the next call, if it is still wanted then
            elif is_quota and error.detail == "EINVAL" and not call.looks_below:
                call.quota_refused = True
            else:
                del self._held[step.key]
                if done:
                    self.seen.forget([step.key])  # what it holds may be ours
                self._fail(call, step.key, held, error.result, error.detail, new=text)
            return
        is_overtaken = self._places.is_overtaken(step.key, held.value, step.value, after)
        self._held[step.key] = after
        self.seen.record(step.key, after.value)
        path, file = step.key
        if file is CgroupFile.CPU_IDLE:
            self._read_again((path, CgroupFile.CPU_SHARES), call.now_ns)
        if not self._places.is_held(step.key, after.value, step.value):
            self._fail(call, step.key, after, WriteResult.REFUSED, "the kernel took another value", new=text)
            return
        if self._cut is not None and (
            step.key not in self._wanted.values or self._corrections.is_yielded(step.key, call.now_ns)
        ):
            self._cut.record(step.key, after.value)
        if step.is_final:
            after.satisfies = (call.wanted[step.key],)
            self._failures.pop(step.key, None)
        owner = self._wanted.winner(step.key, call.owner)
        change = FileChange(
            path=str(held.path),
            old=old.strip(),
            new=text.strip(),
            result=WriteResult.WRITTEN,
            reason=self._wanted.reason(owner),
            now_ns=call.now_ns,
            is_final=step.is_final,
            is_correction=step.key in call.corrected,
            owner=owner,
        )
        self._tell(call, step.key, change)
        if is_overtaken:
            self._read(call, step.key)

    # What the kernel changed is no other owner's value.
    def _read_again(self, key: FileKey, now_ns: int) -> None:
        self.seen.forget([key])
        if self._held.pop(key, None) is not None:
            with contextlib.suppress(Unusable):
                self._held[key] = self._originals.read(key, now_ns)

    def _fail(
        self, call: Call, key: FileKey, held: Held | None, result: WriteResult, detail: str, *, new: str | None = None
    ) -> None:
        value, owner = call.wanted[key], self._wanted.winner(key, call.owner)
        before = self._failures.get(key)
        self._failures[key] = Failure(value, result, detail, call.now_ns + self._settings.refresh_ns)
        if before is not None and (before.value, before.result, before.detail) == (value, result, detail):
            self._changes.count(owner, key[1].value, result)
            return
        change = FileChange(
            path=self._places.name(key),
            old=None if held is None else held.text.strip(),
            new=(new if new is not None else self._places.format(key, value)).strip(),
            result=result,
            reason=self._wanted.reason(owner),
            now_ns=call.now_ns,
            detail=detail,
            owner=owner,
        )
        self._tell(call, key, change)

    def _tell(self, call: Call, key: FileKey, change: FileChange) -> None:
        call.changes.append(change)
        self._changes.add(change, key[1].value)
