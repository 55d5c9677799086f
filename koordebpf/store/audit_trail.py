"""The audit log, and the write-ahead log of plans in progress until the audit has their lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from koordebpf.act.writer.change import WriteResult
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.state.outcome import Outcome
from koordebpf.store.audit import AuditLog
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.repeat_filter import RepeatFilter
from koordebpf.store.sink import (
    AgentStopped,
    DecisionsInterrupted,
    Event,
    FileChanged,
    PlanDecided,
    PlanStarted,
    RoundEnded,
    StrategyActed,
    TickEnded,
)
from koordebpf.store.wal import InFlight
from koordebpf.store.write_budget import WriteBudget
from koordebpf.store.write_log import AuditedRequest, AuditedWrite, audited_request, audited_write

log = logging.getLogger("koordebpf")

_CLOSE_S = 0.5  # Why: an audit that takes nothing must not keep the agent from its end; with the log's it is a second


class AuditTrail:
    """The sink of audit and write-ahead log; either may be missing.

    A plan stands in the write-ahead log before its first eviction is sent, and in the audit once its outcomes are
    known. A killed agent loses what is queued for the audit, so the other is kept until then. Of a file that changes
    all the time `WriteBudget` says which changes have a line.
    """

    name = "audit"
    takes = (
        PlanStarted,
        PlanDecided,
        OutcomeArrived,
        FileChanged,
        StrategyActed,
        RoundEnded,
        TickEnded,
        DecisionsInterrupted,
        AgentStopped,
    )

    def __init__(self, audit: AuditLog | None, in_flight: InFlight | None, plans: OpenPlans) -> None:
        self._audit = audit
        self._in_flight = in_flight
        self._plans = plans
        self._repeats = RepeatFilter()
        self._writes = WriteBudget()

    @property
    def left(self) -> tuple[AuditRecord, ...]:
        """Decisions that an agent was ended in the middle of, or of which the audit may have no line."""
        return self._in_flight.left if self._in_flight else ()

    @property
    def dropped(self) -> int:
        """How many audit lines were lost."""
        return self._audit.dropped if self._audit else 0

    @property
    def waiting(self) -> int:
        """How many audit lines are not written yet."""
        return self._audit.waiting if self._audit else 0

    def publish(self, event: Event) -> None:
        """Write what the event is worth."""
        match event:
            case PlanStarted():
                self._start(event)
            case PlanDecided(_, outcomes) if self._plans.current is not None:
                for outcome in outcomes:
                    self._progress(self._plans.current, outcome)
            case OutcomeArrived(outcome):
                for line in self._plans:
                    self._progress(line, outcome)
            case FileChanged(change):
                if change.result is WriteResult.WRITTEN or not self._plans.dry_run:
                    self._write_changes(self._writes.add(event))
            case StrategyActed(_, news, _, wall_s):
                for request in news:
                    self._write(audited_request(request, self._plans.node, wall_s))
            case RoundEnded(_, view):
                self._catch_up(view.now_ns)
            case TickEnded(now_ns):
                self._write_changes(self._writes.due(now_ns))
                for line in self._plans.closed:
                    self._complete(line.record())
                if not self._plans:
                    self._clear()
            case DecisionsInterrupted(records):
                for record in records:
                    if record.interrupted:
                        log.warning("the agent before this one was ended in the middle of: %s", record.sentence)
                    self._write(record)
                self._clear()
            case AgentStopped():
                for line in self._plans.closed:
                    self._write(line.record())
                self._write_changes(self._writes.rest())
                self._close()

    def _start(self, event: PlanStarted) -> None:
        line = self._plans.current
        if self._in_flight and line is not None and not self._in_flight.begin(line.record()):
            sentence = "what is under way cannot be noted: a kill of the agent now would leave no record"
            self._report("in-flight", sentence, event.decided_ns)

    def _progress(self, line: OpenPlan, outcome: Outcome) -> None:
        if self._in_flight and line.has_victim(outcome.uid):
            self._in_flight.progress(line.id, outcome)

    # A thread writes the audit's line: an agent that is killed before that was not in the middle of anything.
    def _complete(self, record: AuditRecord) -> None:
        if self._in_flight and not self._in_flight.is_empty:
            self._in_flight.complete(record)
        self._write(record)

    def _write_changes(self, changes: Sequence[FileChanged]) -> None:
        for each in changes:
            self._write(audited_write(each.change, self._plans.node, each.wall_s))

    def _write(self, record: AuditRecord | AuditedWrite | AuditedRequest) -> None:
        if self._audit:
            self._audit.write(record)

    def _catch_up(self, now_ns: int) -> None:
        if self._audit is None:
            return
        self._audit.catch_up()
        if problem := self._audit.problem:
            self._report("audit", problem, now_ns)

    # Forgets what was carried out, unless lines of it wait.
    def _clear(self) -> None:
        if self._in_flight and not self._in_flight.is_empty and not self.waiting:
            self._in_flight.clear()

    # What is not written within half a second the next agent reports.
    def _close(self) -> None:
        is_written = self._audit.close(_CLOSE_S) if self._audit else True
        if self._in_flight and is_written:
            self._in_flight.close()

    def _report(self, key: str, sentence: str, now_ns: int) -> None:
        if said := self._repeats.admit(key, sentence, now_ns):
            log.info("%s", said)
