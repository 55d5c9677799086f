"""Which memory came back, and when. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from koordebpf.report.incident.values import Returned
from koordebpf.report.sentences import outcome_sentence
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.tools.incident.charts import name_of
from koordebpf.tools.incident.decisions import Decided, Outcomes
from koordebpf.units import NS_PER_S


def returned(
    found: Sequence[Decided], outcomes: Outcomes, events: Sequence[RecordedEvent], names: Mapping[str, str]
) -> tuple[Returned, ...]:
    """Return each pod that was evicted, and each other one that an agent waited for, by time."""
    back = {each.data["entry"]["uid"]: each for each in events if each.kind == "MemoryReleased"}
    overdue = {each.data["entry"]["uid"]: each for each in events if each.kind == "ReleaseOverdue"}
    rows: dict[str, Returned] = {}
    for each in found:
        known = outcomes.of(each.decided_ns)
        for who in each.victims:
            outcome = known.get(who.uid)
            if outcome is None or not outcome.was_sent:
                continue
            wall_s = each.wall_ns / NS_PER_S
            note = outcome_sentence(outcome)
            rows[who.uid] = _row(who.pod, wall_s, each.decided_ns, who.credit_bytes, note, back.get(who.uid))
            if who.uid in overdue and who.uid not in back:
                rows[who.uid] = _late(rows[who.uid], overdue[who.uid].data["entry"])
    for uid, event in back.items():
        if uid not in rows:
            entry = event.data["entry"]
            note = "deleted by another client, or evicted before the time shown"
            rows[uid] = _row(name_of(uid, names), None, entry["since_ns"], entry["credit_bytes"], note, event)
    return tuple(sorted(rows.values(), key=lambda row: (row.evicted_s or row.back_s or 0.0, row.pod)))


def _row(
    pod: str, evicted_s: float | None, since_ns: int, credit_bytes: int, note: str, back: RecordedEvent | None
) -> Returned:
    if back is None:
        return Returned(pod, evicted_s, credit_bytes, None, None, f"{note}; its memory was not seen to come back")
    after_ns = max(0, back.data["now_ns"] - since_ns)
    return Returned(pod, evicted_s, credit_bytes, back.wall_s, after_ns, note)


def _late(row: Returned, entry: Mapping[str, Any]) -> Returned:
    why = entry.get("why") or "it still holds its memory"
    return Returned(row.pod, row.evicted_s, row.credit_bytes, None, None, f"{row.note}; given up on: {why}")
