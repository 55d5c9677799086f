"""The last decisions and changes of files, as they are shown to other threads: `explain` and the HTTP pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from koordebpf.report.pod_settings import PodLines, PodSettings, pod_settings
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import DecisionsInterrupted, Event, FileChanged, RoundEnded, StrategyActed, TickEnded
from koordebpf.store.write_log import AuditedRequest, AuditedWrite, audited_request, audited_write

_DECISIONS = 50  # about 10 kB each
_REQUESTS = 500  # Why: of one minute at most 20
_WRITES = 2000  # Why: 440 files that are written twice, and what came before


class Recent:
    """The sink of what can be read from any thread: everything as of the last tick, also of a dry run.

    An open plan changes while it is recorded, so only the loop may look at it.
    """

    name = "recent"
    takes = (FileChanged, StrategyActed, RoundEnded, TickEnded, DecisionsInterrupted)

    def __init__(self, plans: OpenPlans) -> None:
        self.explain: list[Callable[[], Mapping[str, PodLines]]] = []  # of each strategy, what it wants of pods by UID
        self._plans = plans
        self._settled: deque[AuditRecord] = deque(maxlen=_DECISIONS)
        self._written: deque[AuditedWrite] = deque(maxlen=_WRITES)
        self._shown_changes = 0
        self._decisions: tuple[AuditRecord, ...] = ()
        self._has_written = False
        self._writes: tuple[AuditedWrite, ...] = ()
        self._requests: tuple[AuditedRequest, ...] = ()
        self._round: RoundEnded | None = None

    def publish(self, event: Event) -> None:
        """Keep decisions whose outcomes are known, and writes; show them at the end of the tick."""
        match event:
            case FileChanged(change, wall_s):
                self._written.append(audited_write(change, self._plans.node, wall_s))
                self._has_written = True
            case StrategyActed(_, news, _, wall_s) if news:
                made = (audited_request(each, self._plans.node, wall_s) for each in news)
                self._requests = (*self._requests, *made)[-_REQUESTS:]
            case RoundEnded():
                self._round = event
            case TickEnded():
                self._settled.extend(line.record() for line in self._plans.closed)
                self._show()
            case DecisionsInterrupted(records):
                self._settled.extend(records)
                self._decisions = tuple(self._settled)

    def decisions(self) -> tuple[AuditRecord, ...]:
        """Return the last decisions, also those whose outcome is awaited; from any thread."""
        return self._decisions

    def writes(self) -> tuple[AuditedWrite, ...]:
        """Return the last changes of files; from any thread."""
        return self._writes

    def requests(self) -> tuple[AuditedRequest, ...]:
        """Return the last requests of eviction plugins that were not carried out; from any thread."""
        return self._requests

    def last_round(self) -> RoundEnded | None:
        """Return the last round, None before the first; from any thread."""
        return self._round

    def pods(self) -> list[PodSettings]:
        """Return all pods with what strategies want of them: of files, and of their memory; from any thread."""
        pods = self._round.view.pods if self._round else ()
        return pod_settings(pods, [each() for each in self.explain])

    def _show(self) -> None:
        if self._plans.changes != self._shown_changes:
            self._shown_changes = self._plans.changes
            self._decisions = (*self._settled, *self._plans.records())
        if self._has_written:
            self._has_written = False
            self._writes = tuple(self._written)
