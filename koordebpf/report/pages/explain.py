"""What was decided, what became of it, which files were written and what plugins asked in vain, for people.

Out of audit lines; 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.errors import ConfigError, json_error
from koordebpf.policy.evict.disruption import ALLOWED
from koordebpf.policy.plan import Candidate, Excluded
from koordebpf.printable import page
from koordebpf.report.pages.columns import filled, released_text
from koordebpf.state.outcome import HookResult, Outcome, Result
from koordebpf.store.audit_record import AuditedFeature, AuditRecord, Latencies
from koordebpf.store.write_log import (
    REQUEST_LINE,
    WRITE_LINE,
    AuditedRequest,
    AuditedWrite,
    alike,
    request_sentence,
    why_not,
)
from koordebpf.units import format_ns

_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_WORDS = {
    Result.DONE: "evicted",
    Result.DRY_RUN: "would have been evicted",
    Result.HELD: "held back",
    Result.REFUSED: "refused",
    Result.GONE: "was gone already",
    Result.FAILED: "could not be evicted",
    Result.SENT: "asked for, no answer yet",
}
_HOOK_WORDS = {
    "done": "done in",
    "failed": "failed after",
    "timed_out": "timed out after",
    "dropped": "not called: too many calls were before it",
}


def decode_requests(raw: bytes, path: str) -> tuple[tuple[AuditedRequest, ...], tuple[ConfigError, ...]]:
    """Return the requests in `raw`, lines or an array of JSON, and what is wrong with lines of requests."""
    if raw.lstrip()[:1] == b"[":
        try:
            return tuple(msgspec.json.decode(raw, type=list[AuditedRequest])), ()
        except _ERRORS as error:
            return (), (json_error(path, raw, error, rule="must be requests"),)
    requests: list[AuditedRequest] = []
    problems: list[ConfigError] = []
    for number, line in enumerate(raw.splitlines(), start=1):
        if REQUEST_LINE not in line:
            continue
        try:
            requests.append(msgspec.json.decode(line, type=AuditedRequest))
        except _ERRORS as error:
            problems.append(json_error(path, line, error, rule="must be a request", first_line=number))
    return tuple(requests), tuple(problems)


def explained_request(line: AuditedRequest) -> str:
    """Return one request: when and where, and why it was not carried out."""
    return page([f"{line.time} {line.node}", *filled(request_sentence(line.request), "  ")])


def decode_writes(raw: bytes, path: str) -> tuple[tuple[AuditedWrite, ...], tuple[ConfigError, ...]]:
    """Return the writes in `raw`, lines or an array of JSON, and what is wrong with lines of writes that are none."""
    writes: list[AuditedWrite] = []
    problems: list[ConfigError] = []
    if raw.lstrip()[:1] == b"[":
        try:
            return tuple(msgspec.json.decode(raw, type=list[AuditedWrite])), ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return (), (json_error(path, raw, error, rule="must be writes"),)
    for number, line in enumerate(raw.splitlines(), start=1):
        if WRITE_LINE not in line:
            continue
        try:
            writes.append(msgspec.json.decode(line, type=AuditedWrite))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problems.append(json_error(path, line, error, rule="must be a write", first_line=number))
    return tuple(writes), tuple(problems)


def rounds_of(writes: Sequence[AuditedWrite]) -> list[list[AuditedWrite]]:
    """Return the writes as they were made: those of one moment and one reason belong together."""
    return [list(each) for _, each in groupby(writes, key=lambda line: (line.change.now_ns, line.change.reason))]


def explained_writes(made: Sequence[AuditedWrite]) -> str:
    """Return one round of writes: when and where, why, and each change with the first file that it was made to."""
    first = made[0]
    lines = [f"{first.time} {first.node}", *filled(first.change.reason, "  ")]
    for change, *others in alike([line.change for line in made]):
        path = Path(change.path)
        more = f" and {len(others)} more" if others else ""
        lines += filled(f"{path.name} {_said(change)}: {path.parent}{more}", "    ")
    return page(lines)


def _said(change: FileChange) -> str:
    step = f"{change.old or 'empty'} → {change.new or 'empty'}"
    match change.result:
        case WriteResult.WRITTEN:
            return f"{step}, set right" if change.is_correction else step
        case WriteResult.DRY_RUN:
            return f"{step} (dry run)"
        case _:
            return f"{step} was not written ({why_not(change)})"


def decode_audit(raw: bytes, path: str) -> tuple[tuple[AuditRecord, ...], tuple[ConfigError, ...]]:
    """Return the records in `raw`, a line or an array of JSON, and what is wrong with the lines that are none."""
    records: list[AuditRecord] = []
    problems: list[ConfigError] = []
    if raw.lstrip()[:1] == b"[":
        try:
            return tuple(msgspec.json.decode(raw, type=list[AuditRecord])), ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return (), (json_error(path, raw, error, rule="must be audit lines"),)
    for number, line in enumerate(raw.splitlines(), start=1):
        if not line.strip() or WRITE_LINE in line or REQUEST_LINE in line:  # no eviction
            continue
        try:
            records.append(msgspec.json.decode(line, type=AuditRecord))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problems.append(json_error(path, line, error, rule="must be an audit line", first_line=number))
    return tuple(records), tuple(problems)


def concerns(record: AuditRecord, pod: str) -> bool:
    """Tell whether a pod, by name, namespace/name or uid, is among those a record speaks of."""
    spoken: list[Candidate | Excluded | Outcome] = list(record.outcomes)
    for feature in record.features:
        spoken += [*feature.ranking, *feature.excluded]
    return any(pod in (each.uid, each.name, f"{each.namespace}/{each.name}") for each in spoken)


def explained(record: AuditRecord) -> str:
    """Return one record: when and where, the sentence, each feature with its ranking, and what became of it."""
    head = f"{record.time} {record.node}" + (", dry run" if record.dry_run else "")
    outcomes = {outcome.uid: outcome for outcome in record.outcomes}
    lines = [head, *filled(record.sentence, "  ")]
    for feature in record.features:
        lines += _feature(feature, outcomes, "was to be evicted" if record.interrupted else "evicted")
    if record.interrupted:
        lines += filled("The agent ended before it knew what became of this; its successor says so.", "  ")
    for called in record.hooks or ():
        lines += filled(_hook(called), "  ")
    if steps := steps_text(record.latencies):
        lines += filled(steps, "  ")
    if record.signals:
        lines += filled(f"It rests on: {record.signals.sentence}", "  ")
    return page(lines)


def _feature(feature: AuditedFeature, outcomes: dict[str, Outcome], fate: str) -> Iterator[str]:
    verdict = feature.verdict
    if not verdict.fires:
        yield from filled(f"{verdict.feature}: {verdict.reason}.", "  ")
        return
    sums = feature.balance
    # How many bytes would end stalls is not known.
    needed = f"{sums.text(sums.need)} were needed" if verdict.stall is None else verdict.reason
    if is_asked := verdict.is_by_name:
        needed = f"plugins ask for {sums.text(sums.need)}"
    parts = [f"{verdict.feature}: {needed}"]
    if sums.pending:
        parts.append(f"{sums.text(sums.pending)} were coming back already")
    if sums.shared and not is_asked:
        parts.append(f"{sums.text(sums.shared)} come from the victims of the features before")
    given = len(feature.victims)
    if given:
        whom = "one pod" if given == 1 else f"{given} pods"
        gives = f"would give {sums.text(sums.credit)}"
        if is_asked:
            gives = "is to be evicted" if given == 1 else "are to be evicted"
        parts.append(f"{whom} of {_candidates(feature.candidates)} {gives}")
    if sums.missing:
        parts.append(f"{sums.text(sums.missing)} stay missing")
    yield from filled(", ".join(parts) + ("." if given else f": {feature.reason}."), "  ")
    for candidate in feature.ranking:
        yield from filled(_ranked(candidate, feature, outcomes.get(candidate.uid), fate), "    ")
        if (why := feature.reasons.get(candidate.uid, verdict.reason)) != verdict.reason:
            yield from filled(f"because {why}", "       ")
    if feature.candidates > len(feature.ranking):
        yield f"    … and {feature.candidates - len(feature.ranking)} more candidates"
    for pod in feature.excluded:
        yield from filled(f"not {pod.namespace}/{pod.name}: {pod.why}", "    ")


def _hook(called: HookResult) -> str:
    took = "" if called.outcome == "dropped" else f" {format_ns(called.took_ns)}"
    why = f": {called.detail}" if called.detail else ""
    return f"Hook {called.hook}, {called.when}: {_HOOK_WORDS[called.outcome]}{took}{why}"


def _candidates(count: int) -> str:
    return "1 candidate" if count == 1 else f"{count} candidates"


def _ranked(candidate: Candidate, feature: AuditedFeature, outcome: Outcome | None, fate: str) -> str:
    priority = "no priority" if candidate.priority is None else f"priority {candidate.priority}"
    name = f"{candidate.namespace}/{candidate.name}"
    who = f"{candidate.rank}. {name} ({priority}, {released_text(candidate, feature.verdict)})"
    if candidate.caused_ns:
        who += f", on whose account others stalled {format_ns(candidate.caused_ns)},"
    if candidate.disruption not in (None, ALLOWED):
        who += f", {candidate.disruption},"
    if candidate.uid not in feature.victims:
        return f"{who} stays"
    if outcome is None:
        return f"{who} {fate}"
    tasks = ""
    if outcome.killed_tasks:
        tasks = ", 1 task" if outcome.killed_tasks == 1 else f", {outcome.killed_tasks} tasks"
    return f"{who} {_WORDS[outcome.result]} by {outcome.executor}{tasks}: {outcome.detail}"


def steps_text(latencies: Latencies) -> str:
    """Return how long each step of a decision took; nothing of those that were not reached."""
    steps = [
        ("seen to decided", latencies.seen_to_decided_ns),
        ("decided to sent", latencies.decided_to_sent_ns),
        ("decided to memory back", latencies.decided_to_freed_ns),
    ]
    return ", ".join(f"{name} {format_ns(ns)}" for name, ns in steps if ns is not None)
