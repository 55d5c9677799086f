"""The audit log: a file that is rotated by size, or standard output, with one JSON line for each plan and write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from koordebpf.kernel.io.degraded import Degraded
from koordebpf.printable import json_bytes
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.line_sink import MAX_LINES, LineSink
from koordebpf.store.output_file import STDOUT
from koordebpf.store.rotated_file import RotatedFile, check_file
from koordebpf.store.write_log import AuditedRequest, AuditedWrite

_log = logging.getLogger("koordebpf")

KEPT = 3  # files before the one that is written


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
        kept: int = KEPT,
        waiting_lines: int = MAX_LINES,
        recovered: Callable[[int], None] | None = None,
    ) -> None:
        self._path = path
        file = RotatedFile(path or STDOUT, max_bytes=max_bytes, kept=kept)
        degraded = Degraded(
            path or "standard output", "audit lines wait in memory, and the oldest of too many are lost"
        )
        self._sink = LineSink(degraded.watching(file.append), "audit", max_lines=waiting_lines, recovered=recovered)

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

    def write(self, record: AuditRecord | AuditedWrite | AuditedRequest) -> bool:
        """Append one line after those that wait; tell whether nothing is in their way."""
        return self._sink.put(json_bytes(record) + b"\n")

    def catch_up(self) -> bool:
        """Have the lines that wait written, in order; tell whether nothing is in their way."""
        return self._sink.catch_up()

    def close(self, timeout_s: float) -> bool:
        """Write what waits, but for no longer than this; tell whether all is written."""
        return self._sink.close(timeout_s)


def open_audit(path: Path | None) -> AuditLog | None:
    """Return the log that a thread writes, `-` for standard output; None where none is wanted.

    The file is tried out by a thread too: open(2) on a hung disk does not return.

    Raises:  ConfigError: the file cannot be written.
    """
    if path is None:
        return None
    check_file("--audit", path, KEPT)
    audit = AuditLog(None if path == STDOUT else path, recovered=_report_lost)
    audit.start()
    return audit


def _report_lost(lines: int) -> None:
    _log.warning("%d audit lines were lost: they could not be written for too long", lines)
