"""Write-ahead log on a tmpfs: evictions and kills in flight, so that a killed agent's last decisions are not lost.

Written before the first signal or request leaves, and after each answer; empty while nothing is in progress. Not the
audit file: that one may be on a slow or full disk, and an eviction waits for neither. The next agent on the node reads
what is left and writes the audit lines that are owed.

The thread that kills writes it itself, unlike log, audit and Events: on cgroup v1 a kill freezes the pod, and only the
next agent thaws what a killed one has frozen. The write is not synced, so that it costs a copy into the memory of a
tmpfs; where there is no room it fails at once, and the eviction continues.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import structs

from koordebpf.act.evict.cgroup import UnfinishedKill
from koordebpf.errors import ConfigError
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.regular_file import open_regular, read_regular_file
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.previous import AUDIT_V1, record_of_today
from koordebpf.units import MIB

IN_FLIGHT_PATH = Path("/run/koordebpf/machine/in-flight.jsonl")
_MAX_BYTES = MIB  # Why: 50 decisions of 20 kB; /run must not fill up


class _Intent(msgspec.Struct, frozen=True, tag="intent"):
    record: AuditRecord


class _Progress(msgspec.Struct, frozen=True, tag="progress"):
    id: str
    outcome: Outcome


class _Complete(msgspec.Struct, frozen=True, tag="complete"):
    record: AuditRecord


class _Kill(msgspec.Struct, frozen=True, tag="kill"):
    kill: UnfinishedKill


def _path_of(kind: type, text: Any) -> Any:
    return kind(text)


class _LineOfVersion1(msgspec.Struct):
    type: Literal["intent", "complete"]
    record: dict[str, Any]


_LINE = msgspec.json.Decoder(_Intent | _Progress | _Complete | _Kill, dec_hook=_path_of)


class Left(msgspec.Struct, frozen=True):
    """What a killed agent had in progress: its decisions, and by pod the kills by cgroup without an end.

    Decisions that are not `interrupted` were complete, and the audit may lack their lines.
    """

    records: tuple[AuditRecord, ...] = ()
    kills: tuple[UnfinishedKill, ...] = ()


class InFlight:
    """Owns the file. `left` is what an agent that ended without `close` was carrying out, and what the audit may lack.

    `kills` of it are those by cgroup of which no end is known.

    Survives: SIGKILL of the agent and of its container, not the machine's end, which ends every pod too.
    Cost:     15 µs for a decision with ten candidates, p99 0.1 ms (measured); fsync on a disk 5 ms, p99 18 to 72 ms.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd, self._bytes = -1, 0
        self._degraded = Degraded(path, "a kill of the agent in the middle of an eviction would leave no record")
        raw = self._opened()
        left = read_left(raw)
        self.left, self.kills = left.records, left.kills
        self.dropped = 0
        # The line that the agent was killed in: ended, or where there is no room even for that, gone.
        if raw and not raw.endswith(b"\n") and not self._write(b"\n"):
            self._bytes = raw.rfind(b"\n") + 1
            os.ftruncate(self._fd, self._bytes)

    # What it holds; where it cannot be opened, which is tried again with each line, nothing.
    def _opened(self) -> bytes:
        try:
            self._fd = open_regular(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            self._bytes = os.fstat(self._fd).st_size
            return os.pread(self._fd, min(self._bytes, _MAX_BYTES), 0)
        except (ConfigError, OSError) as error:
            self._degraded.report(error)
            return b""

    def begin(self, record: AuditRecord) -> bool:
        """Note a decision before it is carried out; tell whether it stands in the file."""
        return self._append(_Intent(record))

    def progress(self, id: str, outcome: Outcome) -> bool:
        """Note what became of one victim of decision `id`; tell whether it stands in the file."""
        return self._append(_Progress(id, outcome))

    def complete(self, record: AuditRecord) -> bool:
        """Note that all is known of a decision, whose audit line may still wait; tell whether it stands in the file."""
        return self._append(_Complete(record))

    def kill(self, kill: UnfinishedKill) -> bool:
        """Note a kill by cgroup before its first signal; tell whether it stands in the file."""
        return self._append(_Kill(kill))

    def finish(self, finish: Callable[[UnfinishedKill], Outcome | None]) -> tuple[Outcome, ...]:
        """Have the kills that were left finished; note what became of them, and return it.

        Args:
            finish: ends one; None where there is nothing to be ended.
        """
        outcomes = tuple(outcome for kill in self.kills if (outcome := finish(kill)) is not None)
        self.kills = ()
        for outcome in outcomes:
            id = next((each.id for each in reversed(self.left) if outcome.uid in _victims(each)), "")
            self.progress(id, outcome)
            self.left = tuple(
                structs.replace(each, outcomes=(*_others(each, outcome), outcome)) if each.id == id else each
                for each in self.left
            )
        return outcomes

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in progress, and the audit has what was."""
        return not self._bytes

    def clear(self) -> None:
        """Forget everything: the audit has it, or nothing is in progress."""
        if self._bytes:
            os.ftruncate(self._fd, 0)
            self._bytes = 0

    def close(self) -> None:
        """Remove the file."""
        if self._fd < 0:
            return  # what is there is another's
        try:
            self._path.unlink(missing_ok=True)
        finally:
            os.close(self._fd)
            self._fd = -1

    def _append(self, line: _Intent | _Progress | _Complete | _Kill) -> bool:
        is_noted = self._write(msgspec.json.encode(line, enc_hook=str) + b"\n")
        self.dropped += not is_noted
        return is_noted

    def _write(self, raw: bytes) -> bool:
        if self._bytes + len(raw) > _MAX_BYTES:
            return False
        if self._fd < 0:
            self._opened()
        if self._fd < 0:
            return False
        try:
            written = os.write(self._fd, raw)
        except OSError as error:
            self._degraded.report(error)
            return False
        self._bytes += written
        if written != len(raw):  # the tmpfs is full: half a line would spoil the next one
            os.ftruncate(self._fd, self._bytes - written)
            self._bytes -= written
            self._degraded.report(os.strerror(errno.ENOSPC))
            return False
        self._degraded.report(None)
        return True


def read_in_flight(path: Path) -> Left:
    """Return what the file of an agent that has ended holds; one that is not there holds nothing.

    Raises:  ConfigError, OSError: it cannot be read.
    """
    try:
        return read_left(read_regular_file(path, 2 * _MAX_BYTES))
    except FileNotFoundError:
        return Left()


def read_left(raw: bytes) -> Left:
    """Parse the write-ahead log of an agent that has ended."""
    intents: dict[str, AuditRecord] = {}
    outcomes: dict[str, dict[str, Outcome]] = {}
    complete: dict[str, AuditRecord] = {}
    kills: dict[str, UnfinishedKill] = {}
    for text in raw.splitlines():
        try:
            line = _of_version_1(text) if AUDIT_V1 in text else _LINE.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # cut short, or of another version
        match line:
            case _Intent():
                intents[line.record.id] = line.record
            case _Complete():
                complete[line.record.id] = line.record
            case _Kill():
                kills[line.kill.uid] = line.kill
            case _Progress():
                known, uid = outcomes.setdefault(line.id, {}), line.outcome.uid
                if uid not in known or known[uid].result is Result.SENT:
                    known[uid] = line.outcome
                if line.outcome.result is not Result.SENT:
                    kills.pop(uid, None)
    return Left(
        tuple(
            complete.get(id) or structs.replace(record, interrupted=True, outcomes=tuple(outcomes.get(id, {}).values()))
            for id, record in intents.items()
        ),
        tuple(kills.values()),
    )


def _of_version_1(text: bytes) -> _Intent | _Complete:
    line = msgspec.json.decode(text, type=_LineOfVersion1)
    record = record_of_today(line.record)
    return _Complete(record) if line.type == "complete" else _Intent(record)


def _victims(record: AuditRecord) -> frozenset[str]:
    return frozenset(uid for feature in record.features for uid in feature.victims)


def _others(record: AuditRecord, outcome: Outcome) -> tuple[Outcome, ...]:
    return tuple(each for each in record.outcomes if each.uid != outcome.uid)
