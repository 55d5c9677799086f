"""What a hook has set of the tasks of containers: the record of it on disk, and reports that are not repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import this_boot
from koordebpf.kernel.io.regular_file import KeptFile
from koordebpf.policy.reconcile import TaskSetting

E = TypeVar("E")


class _Kept(msgspec.Struct, frozen=True):
    boot_id: str
    containers: msgspec.Raw  # by path


class TaskRecord(Generic[E]):
    """The file in which an agent finds what the one before it has set, of this boot.

    Args:
        path: of the file; None: a dry run, which keeps nothing.
        kind: of what is kept, by the path of the container.
    """

    def __init__(self, path: Path | None, kind: type[dict[str, E]]) -> None:
        self._file = KeptFile(path, "of tasks nothing is set, since nothing could put it back")
        self._kind = kind
        self._boot_id = this_boot()

    @property
    def is_dry_run(self) -> bool:
        """Nothing is kept, and nothing may be set."""
        return not self._file.is_kept

    def read(self) -> dict[str, E]:
        """Return what is kept; nothing where there is no file, or one of another boot or form."""
        if (raw := self._file.read()) is None:
            return {}
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            kept = msgspec.json.decode(raw, type=_Kept)
            if kept.boot_id == self._boot_id:
                return msgspec.json.decode(kept.containers, type=self._kind)
        return {}

    def save(self, containers: Mapping[str, E]) -> bool:
        """Put this in place of what was kept, with nothing remove the file; return whether that was possible."""
        if not containers:
            return self._file.remove()
        kept = _Kept(self._boot_id, msgspec.Raw(msgspec.json.encode(containers)))
        return self._file.replace(msgspec.json.encode(kept))


class TaskReports:
    """Reports each write, and of a container what else comes of its setting once.

    Args:
        report: gets each change.
        owner: the name of the strategy.
    """

    def __init__(self, report: Callable[[FileChange], None], owner: str) -> None:
        self._report = report
        self._owner = owner
        self._reported: set[tuple[str, str]] = set()  # containers with what was reported of them

    def keep_only(self, paths: Container[str]) -> None:
        """Forget what was reported of containers other than these."""
        self._reported = {each for each in self._reported if each[0] in paths}

    def report(
        self,
        setting: TaskSetting,
        file: Path,
        values: tuple[str | None, str],
        result: WriteResult,
        now_ns: int,
        detail: str = "",
    ) -> None:
        """Report what became of a setting; the same again only if it was written.

        Args:
            setting: what was wanted.
            file: of the process, or the directory of the container.
            values: what was there, None: not known; and what was to be.
            result: of the write.
            now_ns: CLOCK_MONOTONIC.
            detail: why it was not done.
        """
        if result is not WriteResult.WRITTEN:
            key = (setting.path, f"{result.value} {setting.value} {detail}")
            if key in self._reported:
                return
            self._reported.add(key)
        reason = f"{setting.source} of pod {setting.pod}"
        self._report(FileChange(str(file), *values, result, reason, now_ns, detail, owner=self._owner))

    def report_restored(self, file: Path, old: str, new: str, reason: str, now_ns: int) -> None:
        """Report that something has again what it had before the first write."""
        self._report(FileChange(str(file), old, new, WriteResult.WRITTEN, reason, now_ns, owner=self._owner))
