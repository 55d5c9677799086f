"""What a recording says of its decisions and writes, as the audit has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.act.writer.change import FileChange
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.store.write_log import AuditedWrite, audited_write
from koordebpf.tools.recorder.rounds import DecidesAgain, open_recording
from koordebpf.units import NS_PER_S

_NEAR_S = 5.0  # Why: a round that is carried out is over within it, however busy the node is


def audited(recording: Recording) -> tuple[AuditRecord, ...]:
    """Return each decision that had victims, decided again, with the outcomes that were recorded."""
    again, plans = DecidesAgain(), []
    node = recording.shards[0][1].header.node
    events = recording.events()
    outcomes = [each for event in events for each in outcomes_in(event)]
    decided = decided_times(events)
    dry = {each.decided_ns for each in outcomes if each.result is Result.DRY_RUN}
    for place in recording.decisions:
        each = recording.round(place)
        carried = again.decide(each.tick).carried if each else None
        if each is None or carried is None or not carried.plan.victims:
            continue
        wall_s = each.wall_ns / NS_PER_S
        decided_ns = decided_at(carried.plan.now_ns, wall_s, decided)
        plans.append(
            OpenPlan(
                carried.plan,
                node=node,
                dry_run=decided_ns in dry,
                seen_ns=None,
                decided_ns=decided_ns,
                wall_s=wall_s,
            )
        )
    for outcome in outcomes:
        for plan in plans:
            if plan.decided_ns == outcome.decided_ns:
                plan.note(outcome)
    for event in events:
        if event.kind == "MemoryReleased":
            for plan in plans:
                if plan.decided_ns <= event.data["now_ns"]:
                    plan.note_freed(event.data["entry"]["uid"], event.data["now_ns"])
    return tuple(plan.record() for plan in plans)


def audited_writes(recording: Recording) -> tuple[AuditedWrite, ...]:
    """Return the changes of files that were recorded."""
    node = recording.shards[0][1].header.node
    return tuple(
        audited_write(msgspec.convert(event.data["change"], FileChange), node, event.wall_s)
        for event in recording.events()
        if event.kind == "FileChanged"
    )


def decided_times(events: Iterable[RecordedEvent]) -> dict[int, float]:
    """Return when plans were carried out: CLOCK_MONOTONIC nanoseconds → wall clock, seconds."""
    return {event.data["decided_ns"]: event.wall_s for event in events if event.kind == "PlanDecided"}


def decided_at(now_ns: int, wall_s: float, decided: Mapping[int, float]) -> int:
    """Return when a plan was carried out that was measured at `now_ns`, some moments before.

    `decided` as of `decided_times`; the wall clock tells boots apart, with each of which CLOCK_MONOTONIC starts again.
    """
    near = (at for at, at_s in decided.items() if at >= now_ns and abs(at_s - wall_s) < _NEAR_S)
    return min(near, default=now_ns)


def outcomes_in(event: RecordedEvent) -> list[Outcome]:
    """Return the outcomes of victims that an event brings."""
    if event.kind == "PlanDecided":
        return msgspec.convert(event.data["outcomes"], list[Outcome])
    if event.kind == "OutcomeArrived":
        return [msgspec.convert(event.data["outcome"], Outcome)]
    return []


def explained_lines(path: str, *, writes: bool) -> bytes:
    """Return the lines of a recording as an audit file has them: of writes, or of decisions.

    Raises:  ConfigError: it cannot be read, or is no recording.
    """
    recording = open_recording(path)
    lines = audited_writes(recording) if writes else audited(recording)
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
