"""One JSON line per plan: what was known, what was decided, what became of it.

The line is written when every victim's outcome is final, so that one line tells the whole story. What is under way
until then stands in another file (`in_flight`).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.plan import Candidate, CpuAmounts, Excluded, Plan
from koordebpf.printable import json_bytes
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.line_sink import MAX_LINES, LineSink, write_whole
from koordebpf.store.write_log import AuditedWrite

_log = logging.getLogger("koordebpf")

_STDOUT = 1
_OPEN_S = 1.0  # Why: a disk that answers does so within milliseconds
_BEST = 10  # candidates of the ranking that a line holds


class AuditedFeature(msgspec.Struct, frozen=True):
    """One feature's decision. Bytes. `ranking` holds the ten best of `candidates`."""

    verdict: Verdict
    need_bytes: int
    pending_bytes: int
    credit_bytes: int
    missing_bytes: int
    candidates: int
    ranking: tuple[Candidate, ...]
    victims: tuple[str, ...]  # uids, in order
    excluded: tuple[Excluded, ...]
    reason: str
    shared_bytes: int = 0  # credit of the victims of features before this one
    cpu: CpuAmounts | None = None  # of a feature that judges CPU, in place of the bytes
    not_honoured: tuple[Excluded, ...] = ()  # what would have spared one of the ranking


class Latencies(msgspec.Struct, frozen=True):
    """Nanoseconds from one step to the next; None: that step was not reached.

    Crossing seen → plan decided → first signal or request sent → memory of the last victim back.
    """

    seen_to_decided_ns: int | None = None
    decided_to_sent_ns: int | None = None
    decided_to_freed_ns: int | None = None


class AuditRecord(msgspec.Struct, frozen=True):
    """One line of the audit log. `time` is RFC 3339 UTC; every `_ns` that is a moment is CLOCK_MONOTONIC.

    `interrupted`: the agent ended before it knew what became of it; its successor wrote the line.
    """

    schema: Literal["koordebpf.audit/v1"]
    time: str
    node: str
    dry_run: bool
    decided_ns: int
    sentence: str
    features: tuple[AuditedFeature, ...]
    outcomes: tuple[Outcome, ...]
    latencies: Latencies
    signals: SignalQuality | None = None  # what the decision rests on; None: before the first full look
    id: str = ""
    interrupted: bool = False
    undecided_namespaces: tuple[str, ...] = ()  # as in the plan, the first ten


class OpenPlan:
    """A plan whose outcomes are still coming in."""

    def __init__(
        self,
        plan: Plan,
        *,
        node: str,
        dry_run: bool,
        seen_ns: int | None,
        decided_ns: int,
        wall_s: float,
        signals: SignalQuality | None = None,
    ) -> None:
        self._signals = signals
        self.id = f"{int(wall_s * 1000):x}-{decided_ns:x}"  # of this decision, on this machine
        self.plan = plan
        self._decided_ns = decided_ns
        self._node = node
        self._dry_run = dry_run
        self._seen_ns = seen_ns
        self._time = datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._outcomes: dict[str, Outcome] = {}
        self._freed_ns: dict[str, int] = {}
        self._in_vain: set[str] = set()

    def note(self, outcome: Outcome) -> bool:
        """Take an outcome of one of this plan's victims; tell whether it was one."""
        if outcome.uid not in {victim.candidate.uid for victim in self.plan.victims}:
            return False
        earlier = self._outcomes.get(outcome.uid)
        if earlier is None or earlier.result is Result.SENT:
            self._outcomes[outcome.uid] = outcome
        return True

    def note_freed(self, uid: str, now_ns: int) -> None:
        """Say that one victim's memory is back; of another plan's victim it is no news."""
        if uid in {victim.candidate.uid for victim in self.plan.victims}:
            self._freed_ns.setdefault(uid, now_ns)

    def note_in_vain(self, uid: str, why: str) -> None:
        """Say that one victim's memory is not waited for any more, and why; of another plan's victim it is no news."""
        outcome = self._outcomes.get(uid)
        if outcome is None or uid in self._in_vain:
            return
        self._in_vain.add(uid)
        if why not in outcome.detail:
            self._outcomes[uid] = msgspec.structs.replace(outcome, detail=f"{outcome.detail}; in vain: {why}")

    @property
    def is_settled(self) -> bool:
        """Whether every outcome is final and the memory of those that were really evicted is back, or given up on.

        A pod evicted for CPU may hold none that was measured: nothing is waited for then.
        """
        finals = [outcome for outcome in self._outcomes.values() if outcome.result is not Result.SENT]
        holding = {victim.candidate.uid for victim in self.plan.victims if victim.candidate.credit_bytes}
        return len(finals) == len(self.plan.victims) and all(
            outcome.uid in self._freed_ns or outcome.uid in self._in_vain
            for outcome in finals
            if outcome.result is Result.DONE and outcome.uid in holding
        )

    @property
    def decided_to_freed_ns(self) -> int | None:
        """Return how long after the decision the last memory came back; None: none did yet."""
        return max(self._freed_ns.values()) - self._decided_ns if self._freed_ns else None

    def record(self) -> AuditRecord:
        """Return the line as known now; also for a plan that was given up on."""
        decided_ns = self._decided_ns
        sent = [outcome.sent_ns for outcome in self._outcomes.values() if outcome.sent_ns is not None]
        return AuditRecord(
            schema="koordebpf.audit/v1",
            time=self._time,
            node=self._node,
            dry_run=self._dry_run,
            decided_ns=decided_ns,
            sentence=self.plan.sentence,
            features=tuple(
                AuditedFeature(
                    verdict=feature.verdict,
                    need_bytes=feature.need_bytes,
                    pending_bytes=feature.pending_bytes,
                    credit_bytes=feature.credit_bytes,
                    missing_bytes=feature.missing_bytes,
                    candidates=len(feature.candidates),
                    ranking=feature.candidates[:_BEST],
                    victims=tuple(victim.candidate.uid for victim in feature.victims),
                    excluded=feature.excluded[:_BEST],
                    reason=feature.reason,
                    shared_bytes=feature.shared_bytes,
                    cpu=feature.cpu,
                    not_honoured=feature.not_honoured[:_BEST],
                )
                for feature in self.plan.features
            ),
            outcomes=tuple(self._outcomes.values()),
            latencies=Latencies(
                seen_to_decided_ns=None if self._seen_ns is None else decided_ns - self._seen_ns,
                decided_to_sent_ns=min(sent) - decided_ns if sent else None,
                decided_to_freed_ns=self.decided_to_freed_ns,
            ),
            signals=self._signals,
            id=self.id,
            undecided_namespaces=self.plan.undecided_namespaces[:_BEST],
        )


def audit_schema() -> dict[str, Any]:
    """Return the JSON Schema of an eviction's line."""
    return msgspec.json.schema(AuditRecord)


class AuditLog:
    """Appends audit lines to a file that is rotated by size, or to standard output. Never stops the agent.

    At most `max_bytes` × (`kept` + 1) are on disk, and nothing is synced: that would take 5 ms, at times 70 ms
    (measured), for the last seconds before the machine's own end. Lines that cannot be written (a full disk, a removed
    directory, a reader that does not read) wait in memory, so many at most, and are written in their order before the
    next one; what is pushed out is counted in `dropped`.

    After `start` a thread of its own opens, writes and rotates: who calls `write` waits for no disk and no reader.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_bytes: int = 16 << 20,
        kept: int = 3,
        waiting_lines: int = MAX_LINES,
        recovered: Callable[[int], None] | None = None,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._sink = LineSink(self._deliver, "audit", max_lines=waiting_lines, recovered=recovered)

    def start(self) -> None:
        """Let a thread write from now on."""
        self._sink.start()

    @property
    def waiting(self) -> int:
        """How many lines are not written yet."""
        return self._sink.waiting

    @property
    def written(self) -> int:
        """How many lines were written."""
        return self._sink.written

    @property
    def dropped(self) -> int:
        """How many lines were lost, because too many waited."""
        return self._sink.dropped

    @property
    def last_error(self) -> str | None:
        """What the last line that could not be written met."""
        return self._sink.last_error and f"{self._path or 'stdout'}: {self._sink.last_error}"

    @property
    def problem(self) -> str | None:
        """Why lines wait; None: nothing is in their way."""
        problem = self._sink.problem
        return problem and f"{self.waiting} audit lines wait to be written: {self._path or 'stdout'}: {problem}"

    def write(self, record: AuditRecord | AuditedWrite) -> bool:
        """Append one line after those that wait; tell whether nothing is in their way."""
        return self._sink.put(json_bytes(record) + b"\n")

    def catch_up(self) -> bool:
        """Have the lines that wait written, in order; tell whether nothing is in their way."""
        return self._sink.catch_up()

    def close(self, timeout_s: float) -> bool:
        """Write what waits, but for no longer than this; tell whether all is written."""
        return self._sink.close(timeout_s)

    def _deliver(self, line: bytes) -> None:
        if self._path is None:
            write_whole(_STDOUT, line)
        else:
            self._append(self._path, line)

    # Opened for each line: a plan is rare, and a file that someone moved or removed is recreated.
    def _append(self, path: Path, line: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            size = os.fstat(fd).st_size
            if size and size + len(line) > self._max_bytes:
                os.close(fd)
                fd = -1
                self._rotate(path)
                fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
                size = 0
            if os.write(fd, line) != len(line):
                os.ftruncate(fd, size)  # a full disk took a part: half a line would spoil the file for its readers
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            if fd >= 0:
                os.close(fd)

    def _rotate(self, path: Path) -> None:
        for number in range(self._kept, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
        if self._kept == 0:
            path.unlink()


def open_audit(path: Path | None) -> AuditLog | None:
    """Return the log that a thread writes, `-` for standard output; None where none is wanted.

    The file is tried out by a thread too: open(2) on a hung disk does not return.

    Raises:  ConfigError: the file cannot be written.
    """
    if path is None:
        return None
    if path != Path("-"):
        answers: SimpleQueue[OSError | None] = SimpleQueue()
        threading.Thread(target=lambda: answers.put(_try_out(path)), name="audit-opener", daemon=True).start()
        try:
            error = answers.get(timeout=_OPEN_S)
        except Empty:
            _log.warning("--audit %s does not answer: its lines wait in memory", path)
        else:
            if error is not None:
                rule = f"must be a file that can be written: {error.strerror}"
                raise ConfigError("--audit", str(path), rule)
    audit = AuditLog(None if path == Path("-") else path, recovered=_say_lost)
    audit.start()
    return audit


def _try_out(path: Path) -> OSError | None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
    except OSError as error:
        return error
    return None


def _say_lost(lines: int) -> None:
    _log.warning("%d audit lines were lost: they could not be written for too long", lines)
