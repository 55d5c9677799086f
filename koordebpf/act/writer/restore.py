"""Give files back what they held before the first write to them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult, is_wish
from koordebpf.act.writer.foreign import unseen_rows
from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.places import Held, Original, Places, Unusable, beside, read_held, written
from koordebpf.errors import ActuationError, CgroupGone, KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, Value, format_cpu_list, is_shared
from koordebpf.kernel.cgroup.tables import Table, with_changes
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.policy.reconcile import FileKey, PlannedWrite, plan_writes

_REASON = "it held this before the first write"
# Why half a second: to the kernel a removed cgroup has its quota until a grace period of RCU is over, 20 to 100 ms.
WAIT_S = 0.5
_AGAIN_S = 0.01
_NO_MORE = "this kernel has it no more"  # as a sysctl of a module that was removed


class RestoreReport(msgspec.Struct, frozen=True):
    """Result of a restore. `done`: files that hold what they held at first, or are gone; `left`: those that do not."""

    changes: tuple[FileChange, ...] = ()
    done: tuple[FileKey, ...] = ()
    left: tuple[FileKey, ...] = ()
    lost_lines: int = 0  # of the journal, that could not be read


def restore_journal(path: Path, places: Places, now_ns: int, *, dry_run: bool = False) -> RestoreReport:
    """Restore what a journal has, and take what is done with off it; a journal that is not there has nothing.

    Raises:  ActuationError: it cannot be read, or an agent is using it.
    """
    try:
        if not path.exists():
            return RestoreReport()
    except PermissionError as error:  # of a folder on the way there
        raise ActuationError(f"{path}: {error.strerror}. Run it as root") from error
    if dry_run:
        originals, lost_lines = read_journal(path)
        return msgspec.structs.replace(restore(places, originals, now_ns), lost_lines=lost_lines)
    with Journal(path) as journal:
        report = restore(places, dict(journal.originals), now_ns, enforce=True, wait_s=WAIT_S)
        try:
            journal.forget(report.done)
        except OSError as error:
            raise ActuationError(f"{path}: {error.strerror}: everything is restored, and would be once more") from error
        return msgspec.structs.replace(report, lost_lines=journal.lost_lines)


def restore(
    places: Places,
    originals: Mapping[FileKey, Original],
    now_ns: int,
    *,
    enforce: bool = False,
    last: Mapping[FileKey, Value] | None = None,
    wait_s: float = 0,
) -> RestoreReport:
    """Write the originals back, in an order that the kernel takes, and look whether every byte is there again.

    Without `enforce` it only says what it would write. A cgroup that was removed, or made again under its name, is done
    with, and so is a file whose controller was turned off, which resets it, a sysctl that this kernel has no more, and
    a file that another process changed since it held what `last` says. On v1 a set of CPUs gets those that the one
    above has, and the sets that were copied from one that is restored are as that one.

    A v1 quota that is refused because a cgroup below it, just removed, has more is tried for `wait_s` seconds.
    """
    return _Restore(places, originals, now_ns, enforce, last or {}, wait_s).run()


class _Restore:
    def __init__(
        self,
        places: Places,
        originals: Mapping[FileKey, Original],
        now_ns: int,
        enforce: bool,
        last: Mapping[FileKey, Value],
        wait_s: float,
    ) -> None:
        self._places = places
        self._originals = dict(originals)
        self._last = last
        self._lacking: dict[FileKey, str] = {}  # CPUs that the one above has not any more
        self._now_ns = now_ns
        self._enforce = enforce
        self._held: dict[FileKey, Held] = {}
        self._left: set[FileKey] = set()
        self._written: set[FileKey] = set()
        self._kept: list[FileKey] = []
        self._until_s = time.monotonic() + wait_s
        self._changes: list[FileChange] = []

    def run(self) -> RestoreReport:
        wanted: dict[FileKey, Value] = {}
        for key, original in self._originals.items():
            try:
                held = read_held(self._places, key, self._now_ns)
                wanted[key] = self._places.parse(key, original.text)
            except Unusable as error:
                if error.detail == "ENOENT":  # its directory is still there
                    is_of_cgroup = isinstance(key[1], CgroupFile)
                    why = "its controller was turned off, which has reset it" if is_of_cgroup else _NO_MORE
                    self._tell(key, None, WriteResult.GONE, why)
                else:
                    self._tell(key, None, error.result, error.detail)
            except KernelFileError as error:
                self._tell(key, None, WriteResult.REFUSED, str(error))
            else:
                if held.inode != original.inode:
                    self._tell(key, None, WriteResult.GONE, "another cgroup has its name")
                elif isinstance(held.value, Table):
                    self._held[key], wanted[key] = held, self._without_others(key, held, wanted[key])
                elif self._is_anothers(key, held) and not self._places.is_as_before(key, held, original):
                    self._tell(key, held.text, WriteResult.YIELDED, "another process has written it since: left to it")
                else:
                    self._held[key] = held
        if self._places.versions.get("cpuset") == 1:
            self._add_copies(wanted)
            self._limit_to_parent(wanted)
        plan = plan_writes(self._current(), {key: wanted[key] for key in self._held}, self._places.versions)
        for block in plan.blocked:
            self._tell(block.key, self._held[block.key].text, WriteResult.BLOCKED, block.why)
        late = [step for step in plan.writes if self._step(step)]
        while late:
            time.sleep(_AGAIN_S)
            late = [step for step in late if self._step(step)]
        self._fill_kept()
        self._compare_bytes(wanted)
        done = tuple(key for key in self._originals if key not in self._left)
        return RestoreReport(tuple(self._changes), done, tuple(key for key in self._originals if key in self._left))

    # The rows of a table that another process changed stay as they are.
    def _without_others(self, key: FileKey, held: Held, before: Value) -> Value:
        now, last, original = held.value, self._last.get(key), self._originals[key]
        if not isinstance(now, Table) or not isinstance(before, Table):
            return before
        if isinstance(last, Table):
            rows = with_changes(before, last, now)
        else:
            rows = unseen_rows(self._places, original, before, now)
        if rows != before:
            self._originals[key] = msgspec.structs.replace(original, text=self._places.format(key, rows))
        return rows

    def _is_anothers(self, key: FileKey, held: Held) -> bool:
        return is_wish(self._last.get(key, held.value), held.value, self._places.versions.get("cpuset"))

    # On v1 a new cgroup gets a copy of its parent's CPUs, also while the parent is held and between two looks.
    def _add_copies(self, wanted: dict[FileKey, Value]) -> None:
        left = [key for key in self._held if key[1] is CgroupFile.CPUSET_CPUS]
        while left:
            above = left.pop()
            if self._held[above].value == wanted[above]:
                continue
            for path in _children(self._held[above].path.parent, above[0]):
                key = (path, CgroupFile.CPUSET_CPUS)
                if key in self._originals:
                    continue
                try:
                    held = read_held(self._places, key, self._now_ns)
                except Unusable:
                    continue
                if held.value == self._held[above].value:
                    self._originals[key] = Original(self._originals[above].text, held.inode)
                    self._held[key], wanted[key] = held, wanted[above]
                    left.append(key)

    # On v1 a CPU that is taken offline leaves every set for good, and the kernel takes no set with others than those
    # above have.
    def _limit_to_parent(self, wanted: dict[FileKey, Value]) -> None:
        current = self._current()
        for key in sorted(self._held, key=lambda key: key[0].count("/")):
            above = beside(key, self._places.versions)
            cpus = wanted[key]
            if above is None or not isinstance(cpus, frozenset):
                continue
            room = wanted[above] if above in self._held else current.get(above)
            if isinstance(room, frozenset) and (there := cpus & room) and there != cpus:
                self._lacking[key] = f"the one above it has not CPU {format_cpu_list(cpus - there)} any more"
                self._originals[key] = Original(f"{format_cpu_list(there)}\n", self._originals[key].inode)
                wanted[key] = there

    # The same value may be in other words: cpu.max has a period beside the quota.
    def _compare_bytes(self, wanted: Mapping[FileKey, Value]) -> None:
        for key in [key for key in self._held if key not in self._left and key not in self._written]:
            try:
                self._held[key] = read_held(self._places, key, self._now_ns)
            except Unusable as error:
                self._tell(key, None, error.result, error.detail)
                continue
            if not self._places.is_as_before(key, self._held[key], self._originals[key]):
                self._step(PlannedWrite(key, wanted[key]))

    def _current(self) -> dict[FileKey, Value]:
        current: dict[FileKey, Value] = {}
        for key in self._held:
            other = beside(key, self._places.versions)
            if other is not None and other not in self._held:
                try:
                    current[other] = read_held(self._places, other, self._now_ns).value
                except Unusable:
                    continue
        return current | {key: held.value for key, held in self._held.items()}

    # Tells whether it is to be tried again in a moment.
    def _step(self, step: PlannedWrite) -> bool:
        held = self._held.get(step.key)
        if held is None or step.key in self._left:
            return False  # an earlier step failed
        original = self._originals[step.key]
        texts: tuple[str, ...] = (original.text,)
        if is_shared(step.key[1]) or not step.is_final:
            texts = self._places.writes(step.key, held.value, step.value)
        text = "\n".join(texts)
        if not self._enforce:
            if step.is_final:
                self._tell(step.key, held.text, WriteResult.DRY_RUN, self._lacking.get(step.key, ""))
            return False
        old = held.text
        try:
            held = written(self._places, step.key, held, texts, self._now_ns)
        except Unusable as error:
            if self._is_kept(step.key, text, error):
                self._kept.append(step.key)
            elif step.is_final and self._is_early(step.key, error):
                return True
            else:
                self._tell(step.key, old, error.result, error.detail)
            return False
        before, self._held[step.key] = self._held[step.key], held
        if step.key[1] is CgroupFile.CPU_IDLE:
            self._read_again((step.key[0], CgroupFile.CPU_SHARES))
        if step.is_final and not self._places.is_as_before(step.key, held, original):
            detail = f"the file holds {held.text.strip()!r}"
            is_anothers = self._places.is_overtaken(step.key, before.value, step.value, held)
            self._tell(step.key, old, WriteResult.YIELDED if is_anothers else WriteResult.REFUSED, detail)
        else:
            detail = self._lacking.get(step.key, "") if step.is_final else ""
            self._tell(step.key, old, WriteResult.WRITTEN, detail, new=text, is_final=step.is_final)
        return False

    # Source: kernel/sched/core.c, tg_cfs_schedulable_down, which walks the removed ones too.
    def _is_early(self, key: FileKey, error: Unusable) -> bool:
        is_nested = key[1] is CgroupFile.CPU_QUOTA and self._places.versions["cpu"] == 1
        return is_nested and error.detail == "EINVAL" and time.monotonic() < self._until_s

    # The kernel resets it.
    def _read_again(self, key: FileKey) -> None:
        if key in self._held:
            with contextlib.suppress(Unusable):
                self._held[key] = read_held(self._places, key, self._now_ns)

    # Kernels differ in whether a v2 set that has tasks, or children with sets, may become empty again.
    def _is_kept(self, key: FileKey, text: str, error: Unusable) -> bool:
        is_empty = key[1] is CgroupFile.CPUSET_CPUS and not text.strip()
        return is_empty and self._places.versions["cpuset"] == 2 and error.detail in ("ENOSPC", "EBUSY")

    # Empty was "what the parent has": that is what they get, parents first.
    def _fill_kept(self) -> None:
        for key in sorted(self._kept, key=lambda key: key[0].count("/")):
            held = self._held[key]
            try:
                effective = read_kernel_file(held.path.parent.parent / "cpuset.cpus.effective").text
                self._held[key] = written(self._places, key, held, [effective], self._now_ns)
            except Unusable as error:
                self._tell(key, held.text, error.result, error.detail)
            except (CgroupGone, OSError) as error:
                self._tell(key, held.text, WriteResult.REFUSED, str(error))
            else:
                detail = "what the parent has: the kernel keeps the set from being empty"
                self._tell(key, held.text, WriteResult.WRITTEN, detail, new=effective)

    def _tell(
        self,
        key: FileKey,
        old: str | None,
        result: WriteResult,
        detail: str,
        *,
        new: str | None = None,
        is_final: bool = True,
    ) -> None:
        if result is WriteResult.WRITTEN:
            if is_final:
                self._written.add(key)
        elif result not in (WriteResult.GONE, WriteResult.YIELDED):
            self._left.add(key)
        if result in (WriteResult.GONE, WriteResult.YIELDED):
            self._held.pop(key, None)
        self._changes.append(
            FileChange(
                path=self._places.name(key),
                old=None if old is None else old.strip(),
                new=(self._originals[key].text if new is None else new).strip(),
                result=result,
                reason=_REASON,
                now_ns=self._now_ns,
                detail=detail,
                is_final=is_final,
            )
        )


def _children(directory: Path, path: str) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from (f"{path}/{entry.name}".lstrip("/") for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # gone
        return
