"""What happens in the agent, as one union of events, and the protocol of what takes them.

Audit, write-ahead log, metrics, log, Kubernetes Events, health and the pages of decisions are sinks. Events are frozen
values: `_ns` is CLOCK_MONOTONIC, `wall_s` seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, get_args

import msgspec

from koordebpf.act.writer.change import FileChange
from koordebpf.attribution.owner import Owner
from koordebpf.collect.history import StallNews
from koordebpf.collect.node_watch import SignalState
from koordebpf.decision.decide_tick import TickDecision, TickFrame
from koordebpf.events.records import OomKill
from koordebpf.policy.evict.eligibility import Eligibility
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import Plan
from koordebpf.policy.strategy import RequestNews, SoftNotice
from koordebpf.state.measured import NodeMeasure
from koordebpf.state.outcome import Outcome
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.view import NodeView, PendingRelease
from koordebpf.store.audit_record import AuditRecord


class DecisionsInterrupted(msgspec.Struct, frozen=True):
    """The agent before this one was killed while it carried these out; of others the audit may have no line."""

    records: tuple[AuditRecord, ...]


class PlanStarted(msgspec.Struct, frozen=True):
    """A plan is about to be carried out: published before its first eviction is sent, for the write-ahead log."""

    plan: Plan
    crossed_ns: int | None  # when the threshold was first seen crossed
    decided_ns: int
    wall_s: float


class PlanDecided(msgspec.Struct, frozen=True):
    """A plan fired. `outcomes` are those known at once; `OutcomeArrived` brings the others."""

    plan: Plan
    outcomes: tuple[Outcome, ...]
    crossed_ns: int | None
    decided_ns: int
    wall_s: float


class MemoryReleased(msgspec.Struct, frozen=True):
    """The memory of a pod that was evicted, or deleted by another client, is back."""

    entry: PendingRelease
    now_ns: int


class ReleaseOverdue(msgspec.Struct, frozen=True):
    """A pod did not release its memory in time, and is no longer counted on.

    One whose eviction released nothing is not chosen for `barred_ns`.
    """

    entry: PendingRelease
    now_ns: int
    barred_ns: int


class FileChanged(msgspec.Struct, frozen=True):
    """A file was changed for a strategy, or could not be."""

    change: FileChange
    wall_s: float


class ProblemsSeen(msgspec.Struct, frozen=True):
    """Everything that is wrong now with the source, its objects or the strategy, for these reasons."""

    by_reason: Mapping[str, Sequence[str]]
    now_ns: int


class OomKilled(msgspec.Struct, frozen=True):
    """The kernel's OOM killer killed a process."""

    record: OomKill
    owner: Owner | None
    now_ns: int


class StallsCharged(msgspec.Struct, frozen=True):
    """What pods stalled since the last measurement, and what it was charged to."""

    news: StallNews
    pods: Sequence[PodFacts]


class NoticeEnded(msgspec.Struct, frozen=True):
    """A pod was notified of a soft eviction; with `problem` it could not be."""

    notice: SoftNotice
    problem: str | None
    now_ns: int
    wall_s: float


class StrategyActed(msgspec.Struct, frozen=True):
    """A strategy has done in a round what is no eviction and no write to a cgroup file.

    `name` of the strategy.
    `news` what was asked of it and is not carried out, each once.
    """

    name: str
    news: tuple[RequestNews, ...]
    now_ns: int
    wall_s: float


class ExemptCounted(msgspec.Struct, frozen=True):
    """The memory of pods that are exempt from eviction, by reason."""

    held_bytes: Mapping[str, int]


class EligibilityCounted(msgspec.Struct, frozen=True):
    """How many pods may be evicted at all, and why not the others; None: no feature that evicts is on."""

    found: Eligibility | None
    now_ns: int


class ReportFailed(msgspec.Struct, frozen=True):
    """What a round would have reported could not be made; the round itself has ended as it should."""

    report: str
    error: Exception


class RoundEnded(msgspec.Struct, frozen=True):
    """A full measurement was decided on, and the decision was carried out as far as no guard forbade it."""

    tick: TickFrame  # everything that it was decided from
    view: NodeView
    decision: TickDecision
    signals: SignalState


class NodeSampled(msgspec.Struct, frozen=True):
    """The node alone was measured, between two rounds."""

    now_ns: int
    node: NodeMeasure


class TickEnded(msgspec.Struct, frozen=True):
    """A tick has published everything else."""

    now_ns: int


class TickFailed(msgspec.Struct, frozen=True):
    """An error ended a tick."""

    reason: str


class AgentStopped(msgspec.Struct, frozen=True):
    """The last event: sinks write what waits and close."""

    now_ns: int


Event = (
    DecisionsInterrupted
    | PlanStarted
    | PlanDecided
    | OutcomeArrived
    | MemoryReleased
    | ReleaseOverdue
    | FileChanged
    | ProblemsSeen
    | OomKilled
    | StallsCharged
    | NoticeEnded
    | StrategyActed
    | ExemptCounted
    | EligibilityCounted
    | ReportFailed
    | RoundEnded
    | NodeSampled
    | TickEnded
    | TickFailed
    | AgentStopped
)
EVENTS: Final[tuple[type[Event], ...]] = get_args(Event)


class Sink(Protocol):
    """Takes events of some types, in order, on the thread of the loop; it must not block."""

    name: str  # in the log and as a label of metrics

    @property
    def takes(self) -> Collection[type[Event]]:
        """The types of events that it takes; it gets no others."""

    def publish(self, event: Event) -> None:
        """Take one event."""
