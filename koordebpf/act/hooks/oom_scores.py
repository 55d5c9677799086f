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
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import this_boot
from koordebpf.kernel.proc.oom_score import change_score
from koordebpf.policy.hooks.writes import TaskSetting

SCORES = "oom-scores.json"  # beside the journal of the writer
OWNER = "oomScoreAdj"


class _Score(msgspec.Struct, frozen=True):
    inode: int  # of the container's directory
    before: int  # what its processes had
    value: int


class _Kept(msgspec.Struct, frozen=True):
    boot_id: str
    scores: dict[str, _Score]


class OomScores:
    """The processes of containers that have a score of their own.

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
        self._scores = _read(path, self._boot_id)
        self._said: set[tuple[str, str]] = set()  # containers with what was reported of them

    def apply(self, wanted: Iterable[TaskSetting], now_ns: int) -> None:
        """Make the processes of these containers have their score, and those of all others what they had."""
        by_path = {each.path: each for each in wanted if isinstance(each.value, int)}
        for path in [path for path in self._scores if path not in by_path]:
            self._put_back(path, now_ns)
        self._said = {each for each in self._said if each[0] in by_path}
        for path, setting in by_path.items():
            self._set(path, setting, now_ns)

    def restore(self, now_ns: int) -> None:
        """Put back what all of them had, and remove the record."""
        for path in list(self._scores):
            self._put_back(path, now_ns)
        if self._path is not None and not self._scores:
            self._path.unlink(missing_ok=True)

    def _set(self, path: str, setting: TaskSetting, now_ns: int) -> None:
        found = processes_in(self._mount_point / path)
        if found is None or not isinstance(setting.value, int):
            return
        inode, processes = found
        score, name = setting.value, path.rpartition("/")[2]
        known = self._scores.get(path)
        if known is not None and known.inode != inode:
            known = None
        for pid in sorted(processes):
            before = _score_of(pid)
            if before is None or before == score:
                continue
            if self._path is None:
                self._tell(path, pid, before, setting, now_ns, WriteResult.DRY_RUN, "")
                continue
            if known is None or known.value != score:
                known = _Score(inode, known.before if known else before, score)
                if not self._keep({**self._scores, path: known}):
                    return
            try:
                if change_score(pid, name, score) is not None:
                    self._tell(path, pid, before, setting, now_ns, WriteResult.WRITTEN, "")
            except OSError as error:
                self._tell(path, pid, before, setting, now_ns, WriteResult.REFUSED, error.strerror or str(error))

    def _put_back(self, path: str, now_ns: int) -> None:
        known = self._scores[path]
        found = processes_in(self._mount_point / path)
        if found is not None and found[0] == known.inode:
            for pid in found[1]:
                with contextlib.suppress(OSError):  # a lower score, without the right: it stays
                    if change_score(pid, path.rpartition("/")[2], known.before, only_from=known.value) == known.value:
                        reason = "it held this before the first write"
                        self._report(
                            FileChange(
                                f"/proc/{pid}/oom_score_adj",
                                str(known.value),
                                str(known.before),
                                WriteResult.WRITTEN,
                                reason,
                                now_ns,
                                owner=OWNER,
                            )
                        )
        self._keep({each: score for each, score in self._scores.items() if each != path})

    def _keep(self, scores: dict[str, _Score]) -> bool:
        if self._path is None:
            return False
        part = self._path.with_suffix(".part")
        try:
            if scores:
                part.write_bytes(msgspec.json.encode(_Kept(self._boot_id, scores)))
                part.rename(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError:
            return False
        self._scores = scores
        return True

    def _tell(
        self, path: str, pid: int, before: int, setting: TaskSetting, now_ns: int, result: WriteResult, detail: str
    ) -> None:
        if result is not WriteResult.WRITTEN:
            key = (path, f"{result.value} {setting.value} {detail}")
            if key in self._said:
                return
            self._said.add(key)
        self._report(
            FileChange(
                path=f"/proc/{pid}/oom_score_adj",
                old=str(before),
                new=str(setting.value),
                result=result,
                reason=f"{setting.source} of pod {setting.pod}",
                now_ns=now_ns,
                detail=detail,
                owner=OWNER,
            )
        )


def _score_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_bytes())
    except (OSError, ValueError):
        return None


def _read(path: Path | None, boot_id: str) -> dict[str, _Score]:
    if path is None:
        return {}
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        if kept.boot_id == boot_id:
            return kept.scores
    return {}
