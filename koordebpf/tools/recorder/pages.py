"""Recordings and their replay, for people; their decisions and writes, as the audit has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.act.writer.change import FileChange
from koordebpf.decision.node_plan import NodePlan
from koordebpf.report.pages.plan import plan_page
from koordebpf.report.pages.plan_diff import PlanDiff, diff_page, plan_diff
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.rounds import ReadRound
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.store.write_log import AuditedWrite, audited_write
from koordebpf.tools.plan import case_changes, case_of_tick
from koordebpf.tools.recorder.replay import Change, Replay, ReplayedRound
from koordebpf.tools.recorder.rounds import DecidesAgain, open_recording, time_text
from koordebpf.units import NS_PER_S

_NEAR_S = 5.0  # Why: a round that is carried out is over within it, however busy the node is
_DECISIONS = 20  # lines


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
                plan.add_outcome(outcome)
    for event in events:
        if event.kind == "MemoryReleased":
            for plan in plans:
                if plan.decided_ns <= event.data["now_ns"]:
                    plan.record_freed(event.data["entry"]["uid"], event.data["now_ns"])
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


# What a recording holds, as one value.


class ShardSummary(msgspec.Struct, frozen=True):
    """One file of a recording."""

    file: str
    run: str
    node: str
    pace: str
    koordebpf: str
    redacted: bool
    rounds: int
    first: str | None
    last: str | None


class RecordingSummary(msgspec.Struct, frozen=True):
    """All of it. `rounds`: each once, also where several paces have it. `decisions`: times, the first is number 1."""

    rounds: int
    first: str | None
    last: str | None
    decisions: tuple[str, ...]
    events: dict[str, int]  # by kind
    samples: int
    shards: tuple[ShardSummary, ...]
    problems: tuple[str, ...]


def summary_of(recording: Recording) -> RecordingSummary:
    """Return it; nothing is decided again."""
    times = recording.times_ns
    shards = [
        ShardSummary(
            file=str(path),
            run=shard.header.run,
            node=shard.header.node,
            pace=str(shard.header.pace),
            koordebpf=shard.header.koordebpf,
            redacted=shard.header.redacted,
            rounds=len(shard.rounds),
            first=time_text(shard.rounds[0].wall_ns) if shard.rounds else None,
            last=time_text(shard.rounds[-1].wall_ns) if shard.rounds else None,
        )
        for path, shard in recording.shards
    ]
    return RecordingSummary(
        rounds=len(recording),
        first=time_text(times[0]) if times else None,
        last=time_text(times[-1]) if times else None,
        decisions=tuple(time_text(times[place]) for place in recording.decisions),
        events=dict(Counter(each.kind for each in recording.events())),
        samples=sum(1 for _ in recording.samples()),
        shards=tuple(shards),
        problems=tuple(recording.problems),
    )


class ReplayedPlan(msgspec.Struct, frozen=True):
    """The plan of the round of a time; `diff`: what other settings change, if any were asked for."""

    time: str
    plan: NodePlan  # as it was
    diff: PlanDiff | None = None


def lines_of(each: ReplayedRound, *, is_changed: bool) -> str:
    """Return what there is to say of one round."""
    line = f"{each.time}  round {each.number}: {each.sentence}"
    if each.is_same:
        return line
    if not is_changed:
        return f"{line}\n  DIFFERS from what was recorded"
    now, before = (", ".join(names) or "none" for names in (each.victims, each.victims_before))
    return f"{line}\n  victims: {now}; before: {before}"


def totals_line(totals: Replay, *, is_changed: bool) -> str:
    """Return what a replay came to."""
    if not totals.rounds:
        return "no round"
    of = f"{totals.rounds} rounds from {totals.first} to {totals.last}, {totals.decisions} of which something was done"
    if is_changed:
        return f"{of}; {totals.differing} decided otherwise under these settings"
    if totals.differing:
        return f"{of}; {totals.differing} decided otherwise than they were"
    return f"{of}; each is decided as it was"


def replayed_plan(each: ReadRound, change: Change | None) -> ReplayedPlan:
    """Return the plan of one round; under other settings, also what they change.

    Raises:  ConfigError: a NodeSLO, ConfigMap or quantity is unusable.
    """
    case = case_of_tick(each.tick, "recording")
    decided, diff = case.plan(), None
    if change is not None:
        other = change(case)
        diff = plan_diff(decided, other.plan(), case_changes(case, other))
    return ReplayedPlan(time_text(each.wall_ns), decided, diff)


def round_page(found: ReplayedPlan) -> str:
    """Return the plan of one round; under other settings, what they change."""
    return f"{found.time}\n\n{plan_page(found.plan, 10) if found.diff is None else diff_page(found.diff)}"


def summary_page(summary: RecordingSummary) -> str:
    """Return what a recording holds."""
    lines = [f"{summary.rounds} rounds from {summary.first} to {summary.last}, {summary.samples} samples between them"]
    for shard in summary.shards:
        mark = ", redacted" if shard.redacted else ""
        lines.append(f"  {shard.file}: {shard.rounds} rounds, {shard.pace}, run {shard.run} on {shard.node}{mark}")
    if summary.events:
        lines.append("events: " + ", ".join(f"{count} {kind}" for kind, count in sorted(summary.events.items())))
    lines.append(f"{len(summary.decisions)} rounds of which something was done")
    first = max(0, len(summary.decisions) - _DECISIONS)
    for number, time in enumerate(summary.decisions[first:], start=first + 1):
        lines.append(f"  {number}: {time}")
    lines += [f"passed over: {problem}" for problem in summary.problems]
    return "\n".join(lines)
