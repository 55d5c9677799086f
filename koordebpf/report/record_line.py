"""One kernel record as a line for people (80 columns) or as JSON, with the pod it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, assert_never, get_args

import msgspec

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.events.records import (
    CgroupMkdir,
    CgroupPopulated,
    CgroupRename,
    CgroupRmdir,
    CompactionStall,
    KswapdRun,
    MemcgEvent,
    MemoryStall,
    OomKill,
    ReclaimStall,
    Record,
    TaskMigration,
    ThrottleStall,
    Totals,
)
from koordebpf.printable import json_bytes, printable, with_schema
from koordebpf.units import PAGE_BYTES, format_bytes, format_ns

RECORD_TYPES: tuple[Any, ...] = get_args(Record)
KINDS = tuple(str(each.__struct_config__.tag) for each in RECORD_TYPES)
# Without --kind. Tasks that come and go in cgroups are most of a quiet node's records, and memory.events takes a scan.
DEFAULT_KINDS = tuple(kind for kind in KINDS if kind not in ("populated", "migration", "memcg_event"))
WIDTH = 80
_POD_COLUMNS = 24
HEADER = f"{'TIME':<12} {'EVENT':<8} {'POD':<{_POD_COLUMNS}} WHAT"
# include/linux/compaction.h enum compact_result and include/linux/mmzone.h enum vmscan_throttle_state, in their order.
_COMPACT_RESULTS = (
    "not suitable",
    "skipped",
    "deferred",
    "no suitable page",
    "continue",
    "complete",
    "partial",
    "contended",
    "success",
)
_THROTTLES = ("writeback", "isolated", "no progress", "congested")
_INSIDE = ((1, "reclaim"), (2, "compaction"), (4, "throttled"))


class TraceFilter(msgspec.Struct, frozen=True):
    """Which records a reader wants. An empty part lets everything pass."""

    pods: tuple[str, ...] = ()  # `name`, `namespace/name` or uid
    cgroup_ids: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    min_ns: int = 0  # of records that have a duration
    once: bool = False  # leave out a memstall section that holds what other records tell already

    def lets_pass(self, record: Record, owner: Owner | None) -> bool:
        """Tell whether the record is wanted."""
        if self.kinds and kind_of(record) not in self.kinds:
            return False
        if not self.wants_cgroup(record.cgroup_id, owner):
            return False
        if self.once and isinstance(record, MemoryStall) and record.detail:
            return False
        duration_ns = getattr(record, "delta_ns", None)
        return duration_ns is None or duration_ns >= self.min_ns

    def wants_cgroup(self, cgroup_id: int, owner: Owner | None) -> bool:
        """Tell whether records of this cgroup may be wanted; `owner` is the cgroup's."""
        if self.cgroup_ids and cgroup_id not in self.cgroup_ids:
            return False
        return not self.pods or bool(owner and {owner.pod_uid, owner.pod_name, pod_key(owner)} & set(self.pods))

    @property
    def names_cgroups(self) -> bool:
        """Whether only some cgroups are wanted."""
        return bool(self.pods or self.cgroup_ids)


class Seen(msgspec.Struct, frozen=True):
    """One record, whose it is, and its time of day."""

    record: Record
    owner: Owner | None
    wall: datetime


def kind_of(record: Record) -> str:
    """Return the record's kind as `--kind` and JSON spell it."""
    return str(record.__struct_config__.tag)


def pod_key(owner: Owner) -> str | None:
    """Return `namespace/name`, or None where no source has reported the pod."""
    return f"{owner.namespace}/{owner.pod_name}" if owner.pod_name else None


def owner_text(owner: Owner | None, cgroup_id: int) -> str:
    """Return the shortest true name of who a cgroup belongs to; an unknown one shows its id."""
    name = pod_text(owner, cgroup_id)
    if owner is None:
        return name
    match owner.kind:
        case OwnerKind.CONTAINER | OwnerKind.NESTED if owner.container_name:
            return f"{name}[{owner.container_name}]"
        case OwnerKind.SANDBOX:
            return f"{name}[sandbox]"
    return name


def oom_sentence(record: OomKill, owner: Owner | None) -> str:
    """Return which task the kernel's OOM killer chose, and for what."""
    scope = "the node's memory" if record.is_global else "its own limit"
    whose = owner_text(owner, record.cgroup_id)
    victim = f"{record.comm} ({record.tgid})" if record.tgid else "a process"  # the kernel's counters name none
    return f"the kernel's OOM killer took {victim} of {whose} for {scope}"


def pod_text(owner: Owner | None, cgroup_id: int) -> str:
    """Return the shortest true name of the pod, or of what is no pod, that a cgroup belongs to."""
    if owner is None:
        return f"cgroup {cgroup_id}" if cgroup_id else "-"
    if owner.kind in (OwnerKind.SYSTEM, OwnerKind.ROOT):
        return owner.path or "/"
    if owner.host_application:
        return f"host:{owner.host_application}"
    return pod_key(owner) or f"pod {owner.pod_uid}"


def shortened(name: str, columns: int) -> str:
    """Return a name in so many columns, cut where it says least.

    A name's end tells a pod from its siblings; one that begins with ? is of a pod that is not known, and keeps that.
    """
    name = printable(name)
    if len(name) <= columns:
        return name
    return name[: columns - 1] + "…" if name.startswith("?") else "…" + name[len(name) - columns + 1 :]


def trace_line(record: Record, owner: Owner | None, wall: datetime) -> str:
    """Return the record as one line of at most 80 columns; what does not fit is in the JSON."""
    event, what = _what(record)
    what = printable(what)
    name = shortened(owner_text(owner, record.cgroup_id), _POD_COLUMNS)
    line = f"{wall:%H:%M:%S}.{wall.microsecond // 1000:03} {event:<8} {name:<{_POD_COLUMNS}} {what}".rstrip()
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def trace_json(record: Record, owner: Owner | None, wall: datetime) -> bytes:
    """Return the record as one JSON object: its own fields, `time`, and `owner` (null: unknown)."""
    fields: dict[str, Any] = {"time": wall.isoformat(), **msgspec.to_builtins(record)}
    fields["owner"] = msgspec.to_builtins(owner) if owner else None
    return with_schema("trace", json_bytes(fields))


def losses(totals: Totals | None, undecodable: int = 0) -> list[str]:
    """Return a sentence for all that was lost, or not counted; none: nothing was."""
    sentences = [f"{undecodable} records were of an unknown layout"] if undecodable else []
    if totals is None:
        return sentences
    counted: Mapping[str, int] = {
        "records were lost: the ring was full": totals.ring_lost,
        "stalls were not timed: too many at once": totals.begun_full,
        "stalls were not counted: the table of cgroups was full": totals.stalls_full,
        "runs of programs were passed over by the kernel: their records are missing": totals.missed_runs,
        "stalls ended unseen: they were not timed": totals.lost_ends,
    }
    return sentences + [f"{count} {what}" for what, count in counted.items() if count]


def _what(record: Record) -> tuple[str, str]:
    match record:
        case ReclaimStall():
            got = format_bytes(record.nr_reclaimed * PAGE_BYTES)
            return "reclaim", f"{_waited(record)} {got:>7} {record.comm}"
        case OomKill():
            held = (record.anon_rss_pages + record.file_rss_pages + record.shmem_rss_pages) * PAGE_BYTES
            whose = "node" if record.is_global else "limit"
            return "oom-kill", f"{whose:<5} {format_bytes(held):>7} {record.comm} ({record.tgid})"
        case CgroupMkdir():
            return "born", _short(record.name)
        case CgroupRmdir():
            return "died", _short(record.name)
        case CgroupRename():
            return "renamed", f"now {_short(record.name)}"
        case CompactionStall():
            return "compact", f"{_waited(record)} {record.comm}: {_named(_COMPACT_RESULTS, record.detail)}"
        case ThrottleStall():
            return "throttle", f"{_waited(record)} {record.comm}: {_named(_THROTTLES, record.detail)}"
        case MemoryStall():
            inside = "+".join(name for bit, name in _INSIDE if record.detail & bit) or "refault, swap"
            return "memstall", f"{_waited(record)} {record.comm}: {inside}"
        case CgroupPopulated():
            return ("filled", "has its first task") if record.populated else ("emptied", "lost its last task")
        case TaskMigration():
            which = "all threads of it" if record.threadgroup else "one task"
            return "moved", f"{record.comm} ({record.pid}) came, {which}"
        case MemcgEvent():
            return "memcg", f"{record.event} +{record.count}"
        case KswapdRun():
            return "kswapd", f"NUMA node {record.nid} awake {format_ns(record.delta_ns)}"
        case _:
            assert_never(record)


def _waited(record: ReclaimStall | CompactionStall | ThrottleStall | MemoryStall) -> str:
    return f"{'node' if record.is_global else 'limit':<5} {format_ns(record.delta_ns):>7}"


def _named(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:13]}…{name[-13:]}"
