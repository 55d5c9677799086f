"""The audit, and what stands in for it until it has a line: the record of what is being carried out."""

from __future__ import annotations

from koordebpf.state.outcome import Outcome
from koordebpf.store.audit import AuditLog, AuditRecord
from koordebpf.store.wal import InFlight
from koordebpf.store.write_log import AuditedWrite

_CLOSE_S = 0.5  # Why: an audit that takes nothing must not keep the agent from its end; with the log's it is a second


class AuditTrail:
    """Either may be missing. A killed agent loses what is queued for the audit, so the other is kept until then."""

    def __init__(self, audit: AuditLog | None, in_flight: InFlight | None) -> None:
        self._audit = audit
        self._in_flight = in_flight

    @property
    def left(self) -> tuple[AuditRecord, ...]:
        """Decisions that an agent was ended in the middle of."""
        return self._in_flight.left if self._in_flight else ()

    @property
    def problem(self) -> str | None:
        """Why audit lines wait; None: nothing is in their way."""
        return self._audit.problem if self._audit else None

    @property
    def dropped(self) -> int:
        """How many audit lines were lost."""
        return self._audit.dropped if self._audit else 0

    @property
    def waiting(self) -> int:
        """How many audit lines are not written yet."""
        return self._audit.waiting if self._audit else 0

    def begin(self, record: AuditRecord) -> bool:
        """Note a decision before it is carried out; tell whether it stands where the next agent finds it."""
        return self._in_flight is None or self._in_flight.begin(record)

    def progress(self, id: str, outcome: Outcome) -> None:
        """Note what became of one victim of decision `id`."""
        if self._in_flight:
            self._in_flight.progress(id, outcome)

    def write(self, record: AuditRecord | AuditedWrite) -> None:
        """Append one audit line."""
        if self._audit:
            self._audit.write(record)

    def catch_up(self) -> None:
        """Have the lines that wait written."""
        if self._audit:
            self._audit.catch_up()

    def clear(self) -> None:
        """Forget what was carried out, unless lines of it wait."""
        if self._in_flight and not self._in_flight.is_empty and not self.waiting:
            self._in_flight.clear()

    def close(self) -> None:
        """Write what waits, within half a second; what is left then the next agent tells."""
        is_written = self._audit.close(_CLOSE_S) if self._audit else True
        if self._in_flight and is_written:
            self._in_flight.close()
