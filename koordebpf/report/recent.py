"""The last decisions and changes of files, as they are shown to other threads: `explain` and the HTTP pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from koordebpf.store.audit import AuditRecord
from koordebpf.store.write_log import AuditedWrite

_DECISIONS = 50  # about 10 kB each
_WRITES = 2000  # Why: 440 files that are written twice, and what came before


class Recent:
    """What `publish` has taken over can be read from any thread; all else is the loop's."""

    def __init__(self) -> None:
        self._settled: deque[AuditRecord] = deque(maxlen=_DECISIONS)
        self._written: deque[AuditedWrite] = deque(maxlen=_WRITES)
        self._is_changed = True
        self._decisions: tuple[AuditRecord, ...] = ()
        self._writes: tuple[AuditedWrite, ...] = ()

    def add_decision(self, record: AuditRecord) -> None:
        """Add a decision whose outcomes are known."""
        self._settled.append(record)
        self._is_changed = True

    def add_write(self, line: AuditedWrite) -> None:
        """Add a change of a file, also one of a dry run."""
        self._written.append(line)
        self._is_changed = True

    def changed(self) -> None:
        """Note that an open decision has changed."""
        self._is_changed = True

    def publish(self, open_records: Callable[[], Iterable[AuditRecord]]) -> None:
        """Let other threads see what changed, if anything did, with the decisions whose outcomes are awaited."""
        if not self._is_changed:
            return
        self._is_changed = False
        self._decisions = (*self._settled, *open_records())
        self._writes = tuple(self._written)

    def decisions(self) -> tuple[AuditRecord, ...]:
        """Return the last decisions as published; from any thread."""
        return self._decisions

    def writes(self) -> tuple[AuditedWrite, ...]:
        """Return the last changes of files as published; from any thread."""
        return self._writes
