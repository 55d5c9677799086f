"""An audit as an incident: what its lines have, and what they lack."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.report.pages.explain import decode_audit, decode_writes, steps_text
from koordebpf.report.sentences import outcome_sentence
from koordebpf.state.amount import MEMORY
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.write_log import AuditedWrite
from koordebpf.tools.incident.ranking import outcome_lines, ranking_of
from koordebpf.tools.incident.timeline import Window, changed_files, marks_of, timeline, window_of
from koordebpf.tools.incident.values import Chart, DecisionShown, Fact, Incident, Returned, Series, counted
from koordebpf.units import NS_PER_S

_LACKS = (
    "An audit has no measurements between decisions: memory by pod, stalls, growth and suppression are not shown.",
    "An audit has no ledger: nothing is known of who made whom stall.",
    "An audit has the ten best candidates of each feature, and ten of those that are none.",
    "An audit has no OOM kills.",
    "A recording of the same time has all of these: koordebpf report FOLDER, with the folder of the agent's recorder.",
)


def incident_of_audit(
    raw: bytes, source: str, since_ns: int | None = None, until_ns: int | None = None, decision: int | None = None
) -> Incident:
    """Return what the lines of an audit say of one incident; the arguments are those of `incident_of_recording`.

    Raises:  ConfigError: no line is an audit's, or there is no such decision.
    """
    records, problems = decode_audit(raw, source)
    writes, more = decode_writes(raw, source)
    if not records and not writes:
        raise (*problems, *more, ConfigError(source, "no decision and no write", "must be an agent's audit"))[0]
    records = tuple(sorted(records, key=_at_s))
    decided = [int(_at_s(each) * NS_PER_S) for each in records]
    times = sorted(decided + [int(_time_s(each.time) * NS_PER_S) for each in writes])
    if decision is not None and not 1 <= abs(decision) <= len(records):
        raise ConfigError("--decision", decision, f"must be 1 to {len(records)}, or -1 for the last")
    around = None if decision is None else decided[decision - 1 if decision > 0 else decision]
    window = window_of(times, decided, since_ns, until_ns, around)
    shown = tuple(each for each in records if window.has(_at_s(each)))
    return _incident(
        shown, [each for each in writes if window.has(_time_s(each.time))], source, window, (*problems, *more)
    )


def _incident(
    records: Sequence[AuditRecord],
    writes: Sequence[AuditedWrite],
    source: str,
    window: Window,
    problems: Sequence[ConfigError],
) -> Incident:
    decisions = tuple(map(_decision, records))
    lines, _ = timeline(decisions, (), {})
    changes = changed_files((_time_s(each.time), msgspec.to_builtins(each.change)) for each in writes)
    lines = tuple(sorted((*lines, *changes), key=lambda line: line.at_s))
    nodes = dict.fromkeys([*(each.node for each in records), *(each.node for each in writes)])
    part = (
        ("The audit has more lines than this page shows; --since and --until choose others.",) if window.is_part else ()
    )
    left = tuple(f"Left out: {problem}" for problem in problems)
    victims = {uid for each in records for feature in each.features for uid in feature.victims}
    return Incident(
        node=", ".join(nodes),
        source=source,
        kind="audit",
        first_s=window.first_ns / NS_PER_S,
        last_s=window.last_ns / NS_PER_S,
        summary=(
            f"{counted(len(records), 'decision')} chose {counted(len(victims), 'pod')};"
            f" {counted(len(writes), 'change')} of files in the audit."
        ),
        charts=_charts(records),
        marks=marks_of(lines),
        decisions=decisions,
        returned=tuple(row for each in records for row in _returned(each)),
        timeline=lines,
        facts=(Fact("Decisions", str(len(records))), Fact("Changes of files", str(len(writes)))),
        signals=tuple(dict.fromkeys(each.signals.sentence for each in records if each.signals is not None)),
        missing=(*part, *_LACKS, *left),
    )


def _decision(record: AuditRecord) -> DecisionShown:
    outcomes = {each.uid: each for each in record.outcomes}
    names = {each.uid: f"{each.namespace}/{each.name}" for feature in record.features for each in feature.ranking}
    victims = [uid for feature in record.features for uid in feature.victims]
    at_s = _at_s(record)
    return DecisionShown(
        at_s=at_s,
        last_s=at_s,
        times=1,
        sentence=record.sentence,
        victims=tuple(names.get(uid, uid) for uid in victims),
        is_dry_run=record.dry_run,
        outcomes=outcome_lines(record.outcomes),
        rankings=tuple(ranking_of(each, outcomes) for each in record.features if each.verdict.fires),
        latencies=steps_text(record.latencies),
    )


# A line has when the last memory came back, not that of each pod.
def _returned(record: AuditRecord) -> list[Returned]:
    credit = {each.uid: each.of(MEMORY).released for feature in record.features for each in feature.ranking}
    after_ns = record.latencies.decided_to_freed_ns
    sent = [each for each in record.outcomes if each.was_sent]
    rows = []
    for each in sent:
        is_known = after_ns is not None and len(sent) == 1
        back_s = _at_s(record) + after_ns / NS_PER_S if is_known and after_ns is not None else None
        note = outcome_sentence(each)
        if after_ns is not None and len(sent) > 1:
            note += f"; the last of the {len(sent)} was back {after_ns / NS_PER_S:.2f} s after the decision"
        name = f"{each.namespace}/{each.name}"
        rows.append(Returned(name, _at_s(record), credit.get(each.uid), back_s, after_ns if is_known else None, note))
    return rows


# What each decision rested on: moments, with nothing known between them.
def _charts(records: Sequence[AuditRecord]) -> tuple[Chart, ...]:
    found = []
    for each in records:
        uses = [feature.verdict.evidence for feature in each.features if feature.verdict.evidence is not None]
        use = next((use for use in uses if use.resource == MEMORY), None)
        if use is not None:
            found.append((_at_s(each), use))
    if len(found) < 2:
        return ()
    series = (
        Series("node, in use", "line", tuple(use.used for _, use in found)),
        Series("threshold", "mark", tuple(use.threshold for _, use in found)),
        Series("lower mark", "mark", tuple(use.lower for _, use in found)),
    )
    note = "Memory in use at each decision; nothing is known of the time between."
    return (Chart("memory", "Memory at the decisions", "bytes", tuple(at_s for at_s, _ in found), series, note),)


def _at_s(record: AuditRecord) -> float:
    return _time_s(record.time)


def _time_s(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError as error:
        raise ConfigError("time", time, "must be RFC 3339") from error
