"""Plans whose outcomes are still coming in, and the victims of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import Plan, Victim
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.repeat_filter import RepeatFilter
from koordebpf.store.sink import (
    AgentStopped,
    Event,
    MemoryReleased,
    PlanDecided,
    PlanStarted,
    ReleaseOverdue,
    RoundEnded,
    TickEnded,
)
from koordebpf.units import NS_PER_S

_GIVE_UP_NS = 180 * NS_PER_S  # an audit line is written with what is known by then


class OpenPlans:
    """Owns the open audit lines; forgets victims when no line is open any more.

    The first of the sinks: those after it read what an event has changed here.

    Args:
        node: its name.
        dry_run: nothing is evicted or written.
    """

    name = "plans"
    takes = (
        PlanStarted,
        PlanDecided,
        OutcomeArrived,
        MemoryReleased,
        ReleaseOverdue,
        RoundEnded,
        TickEnded,
        AgentStopped,
    )

    def __init__(self, node: str, *, dry_run: bool) -> None:
        self.node = node
        self.dry_run = dry_run
        self.signals: SignalQuality | None = None  # as of the last round
        self.current: OpenPlan | None = None  # the line of the last plan; None: it is no news
        self.closed: tuple[OpenPlan, ...] = ()  # by the last event that was taken
        self.changes = 0
        self._repeats = RepeatFilter()
        self._lines: list[tuple[int, OpenPlan]] = []  # since when
        self._victims: dict[str, tuple[Verdict, Victim]] = {}  # and the verdict that asks for it, by uid

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[OpenPlan]:
        return (line for _, line in self._lines)

    def publish(self, event: Event) -> None:
        """Open, change or close lines."""
        self.closed = ()
        match event:
            case PlanStarted():
                self.current = self._open(event)
            case PlanDecided():
                self._decided(event)
            case OutcomeArrived(outcome):
                for line in self:
                    self.changes += line.add_outcome(outcome)
            case MemoryReleased(entry, now_ns) if self.is_awaited(event):
                for line in self:
                    line.record_freed(entry.uid, now_ns)
                self.changes += 1
            case ReleaseOverdue(entry) if entry.failed_ns is not None:
                for line in self:
                    line.record_in_vain(entry.uid, entry.why)
                self.changes += 1
            case RoundEnded():
                self.signals = event.signals.quality
            case TickEnded(now_ns):
                self.closed = self._drain_settled(now_ns)
            case AgentStopped():
                self.closed, self._lines = tuple(self), []

    def is_awaited(self, event: MemoryReleased) -> bool:
        """Tell whether it is a victim's memory: pods that another client deleted, or that held none, are no news."""
        return self.victim(event.entry.uid) is not None and bool(event.entry.credit_bytes)

    def victim(self, uid: str) -> Victim | None:
        """Return the victim of this UID; None: it is not known, or no more."""
        found = self._victims.get(uid)
        return found[1] if found else None

    def feature(self, uid: str) -> str:
        """Return the feature that chose the victim of this UID; "" where it is not known."""
        found = self._victims.get(uid)
        return found[0].feature if found else ""

    def is_by_name(self, uid: str) -> bool:
        """Tell whether the victim of this UID was asked for by name."""
        found = self._victims.get(uid)
        return found is not None and found[0].is_by_name

    def pod_name(self, uid: str) -> str:
        """Return how to call a victim in a sentence."""
        victim = self.victim(uid)
        return f"{victim.candidate.namespace}/{victim.candidate.name}" if victim else f"pod {uid}"

    def records(self) -> list[AuditRecord]:
        """Return every open line as known now."""
        return [line.record() for line in self]

    def _open(self, event: PlanStarted | PlanDecided) -> OpenPlan:
        line = OpenPlan(
            event.plan,
            node=self.node,
            dry_run=self.dry_run,
            seen_ns=event.crossed_ns,
            decided_ns=event.decided_ns,
            wall_s=event.wall_s,
            signals=self.signals,
        )
        self._remember(line.plan)
        self._lines.append((event.decided_ns, line))
        self.changes += 1
        return line

    # A plan that was not carried out has a line where it is news.
    def _decided(self, event: PlanDecided) -> None:
        is_news = self._repeats.admit(plan_key(event.plan, event.outcomes), "", event.decided_ns) is not None
        self._remember(event.plan)
        if self.current is not None and self.current.decided_ns != event.decided_ns:
            self.current = None
        if self.current is None and (is_news or is_acting(event.outcomes)):
            self.current = self._open(event)
        if self.current is not None:
            for outcome in event.outcomes:
                self.changes += self.current.add_outcome(outcome)

    # The victims are known, though no line of the plan may be opened.
    def _remember(self, plan: Plan) -> None:
        for feature in plan.features:
            for victim in feature.victims:
                self._victims[victim.candidate.uid] = (feature.verdict, victim)

    # Lines that are settled or were given up on.
    def _drain_settled(self, now_ns: int) -> tuple[OpenPlan, ...]:
        done = tuple(line for since, line in self._lines if line.is_settled or now_ns - since > _GIVE_UP_NS)
        if done:
            self._lines = [(since, line) for since, line in self._lines if line not in done]
            self.changes += 1
        if not self._lines:
            self._victims.clear()
        return done


def is_acting(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether anything of a plan is carried out."""
    return any(outcome.result in (Result.SENT, Result.DONE) for outcome in outcomes)


def plan_key(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    """Return what a plan is about: one with the same key is no news. Amounts change with each look and are no news."""
    is_held = any(outcome.result is Result.HELD for outcome in outcomes)
    # A guard that opens is news, and so is a kill of who was evicted.
    key = "held:" if is_held else f"{plan.sentence.partition(' ')[0]}:"
    why_none = [each.reason.lstrip("0123456789. ") for each in plan.features if each.verdict.fires]
    return key + (",".join(victim.candidate.uid for victim in plan.victims) or "; ".join(why_none))
