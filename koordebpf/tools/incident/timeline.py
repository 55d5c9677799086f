"""What happened in the window of one page, line by line: decisions, OOM kills, changed files, memory that came back.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordebpf.store.recorder.values import ROUNDS_LOST, RecordedEvent
from koordebpf.tools.incident.charts import name_of
from koordebpf.tools.incident.page import repeated
from koordebpf.tools.incident.values import DecisionShown, Happened, Mark
from koordebpf.units import NS_PER_S, format_bytes

HOUR_NS = 3600 * NS_PER_S  # Why: a page of an hour is read at once, and stays small
_APART_NS = 600 * NS_PER_S  # decisions that are further apart are two incidents
_BEFORE_NS = 300 * NS_PER_S
_AFTER_NS = 600 * NS_PER_S
_MOST = 300  # lines
_MOST_MARKS = 200


class Window(msgspec.Struct, frozen=True):
    """From `first_ns` to `last_ns`, wall clock. `is_part`: there is more than this."""

    first_ns: int
    last_ns: int
    is_part: bool

    def has(self, wall_s: float) -> bool:
        """Tell whether a moment lies in it; one second more counts, since outcomes follow the last round."""
        return self.first_ns <= wall_s * NS_PER_S <= self.last_ns + NS_PER_S


def window_of(
    times_ns: Sequence[int],
    decided_ns: Sequence[int],
    since_ns: int | None = None,
    until_ns: int | None = None,
    around_ns: int | None = None,
) -> Window:
    """Return what is shown.

    With a time, from it or to it. Else all of it, if that is an hour at most; else the incident around one decision, by
    default the last: decisions with less than 10 minutes between two belong together, and 5 minutes before and 10 after
    are shown with them, an hour at most. Without a decision: the last hour.

    Args:
        times_ns: of all rounds, sorted, one at least.
        decided_ns: of the decisions, sorted.
        since_ns: the begin; None: not given.
        until_ns: the end.
        around_ns: the decision that is shown.
    """
    first, last = times_ns[0], times_ns[-1]
    if since_ns is not None or until_ns is not None:
        begin, end = (first if since_ns is None else since_ns), (last if until_ns is None else until_ns)
    elif around_ns is None and last - first <= HOUR_NS:
        begin, end = first, last
    elif not decided_ns:
        begin, end = last - HOUR_NS, last
    else:
        begin, end = _around(decided_ns, decided_ns[-1] if around_ns is None else around_ns)
    begin, end = max(begin, first), min(end, last)
    return Window(begin, end, is_part=begin > first or end < last)


# The decision itself is always in it: a longer series is cut at its begin, and at its end only past the decision.
def _around(decided_ns: Sequence[int], at_ns: int) -> tuple[int, int]:
    begin = end = at_ns
    for each in sorted((each for each in decided_ns if each <= at_ns), reverse=True):
        if begin - each > _APART_NS:
            break
        begin = each
    for each in (each for each in decided_ns if each >= at_ns):
        if each - end > _APART_NS:
            break
        end = each
    end = min(end + _AFTER_NS, max(begin - _BEFORE_NS, at_ns - HOUR_NS + _AFTER_NS) + HOUR_NS)
    return max(begin - _BEFORE_NS, end - HOUR_NS), end


def timeline(
    decisions: Sequence[DecisionShown], events: Sequence[RecordedEvent], names: Mapping[str, str]
) -> tuple[tuple[Happened, ...], int]:
    """Return the lines by time, and how many more there were than are shown."""
    lines = [Happened(each.at_s, "decision", _decided(each)) for each in decisions]
    for event in events:
        if (line := _line(event, names)) is not None:
            lines.append(line)
    lines += changed_files((event.wall_s, event.data["change"]) for event in events if event.kind == "FileChanged")
    lines.sort(key=lambda line: line.at_s)
    return tuple(lines[-_MOST:]), max(0, len(lines) - _MOST)


def _decided(each: DecisionShown) -> str:
    again = f"; {repeated(each.times)}" if each.times > 1 else ""
    return f"{each.sentence}{' (dry run)' if each.is_dry_run else ''}{again}"


def _line(event: RecordedEvent, names: Mapping[str, str]) -> Happened | None:
    data, at_s = event.data, event.wall_s
    match event.kind:
        case "OomKilled":
            return Happened(at_s, "OOM kill", oom_sentence(data))
        case "MemoryReleased":
            entry = data["entry"]
            credit = format_bytes(entry["credit_bytes"])
            return Happened(
                at_s, "memory back", f"the memory of {name_of(entry['uid'], names)} is back, {credit} expected"
            )
        case "ReleaseOverdue":
            entry = data["entry"]
            why = entry.get("why") or "it still holds its memory"
            return Happened(at_s, "overdue", f"{name_of(entry['uid'], names)} is not counted on any more: {why}")
        case "NoticeEnded":
            problem = data.get("problem")
            text = "was notified of a soft eviction" if problem is None else f"could not be notified: {problem}"
            return Happened(at_s, "notice", f"{'/'.join(data['notice'][:2])} {text}")
        case "TickFailed":
            return Happened(at_s, "error", f"a round of the agent failed: {data['reason']}")
        case kind if kind == ROUNDS_LOST:
            return Happened(at_s, "lost", f"{data['rounds']} rounds were not recorded")
    return None


def oom_sentence(data: Mapping[str, Any]) -> str:
    """Return what the kernel's OOM killer did, from the fields of `OomKilled`."""
    record, owner = data["record"], data.get("owner") or {}
    name, where = owner.get("pod_name"), owner.get("path")
    of = f" of {owner.get('namespace')}/{name}" if name else f" in {where}" if where else ""
    limit = "the machine ran out of memory" if record["is_global"] else "the limit of its cgroup was hit"
    return f"the kernel killed {record['comm']} ({record['tgid']}){of}: {limit}"


def changed_files(changes: Iterable[tuple[float, Mapping[str, Any]]]) -> list[Happened]:
    """Return a line for each reason and file name: suppression alone writes hundreds of files."""
    first: dict[tuple[str, str, str], float] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for wall_s, change in changes:
        key = (change.get("owner") or "", str(change["path"]).rpartition("/")[2], str(change["result"]))
        first.setdefault(key, wall_s)
        counts[key] += 1
    lines = []
    for (owner, file, result), count in counts.items():
        who = f"{owner}: " if owner else ""
        times = "once" if count == 1 else f"{count} times"
        lines.append(
            Happened(
                first[owner, file, result], "files", f"{who}{file}, {result.replace('_', ' ')} {times} from then on"
            )
        )
    return lines


def marks_of(lines: Iterable[Happened]) -> tuple[Mark, ...]:
    """Return the lines that every plot shows."""
    kinds = {"decision": "decision", "OOM kill": "oom", "memory back": "back", "lost": "gap"}
    found = [Mark(line.at_s, kinds[line.kind], line.text) for line in lines if line.kind in kinds]  # type: ignore[arg-type]
    return tuple(found[-_MOST_MARKS:])
