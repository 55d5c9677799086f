"""One kernel record as a line for people (80 columns) or as JSON, with the pod it belongs to."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_never

import msgspec

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.events.records import (
    CgroupBirth,
    CgroupDeath,
    CgroupRename,
    KswapdRun,
    OomKill,
    ReclaimStall,
    Record,
)
from koordebpf.units import PAGE_BYTES, format_bytes, format_ns

KINDS = ("reclaim", "oom_kill", "cgroup_mkdir", "cgroup_rmdir", "cgroup_rename", "kswapd")
HEADER = f"{'TIME':<15} {'EVENT':<8} {'POD':<26} WHAT"
_POD_COLUMNS = 26


class TraceFilter(msgspec.Struct, frozen=True):
    """Which records a reader wants. An empty part lets everything pass."""

    pods: tuple[str, ...] = ()  # `name`, `namespace/name` or uid
    cgroup_ids: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    min_ns: int = 0  # of records that have a duration

    def lets_pass(self, record: Record, owner: Owner | None) -> bool:
        """Tell whether the record is wanted."""
        if self.kinds and kind_of(record) not in self.kinds:
            return False
        if self.cgroup_ids and record.cgroup_id not in self.cgroup_ids:
            return False
        if self.pods and not (owner and {owner.pod_uid, owner.pod_name, pod_key(owner)} & set(self.pods)):
            return False
        return not isinstance(record, ReclaimStall | KswapdRun) or record.delta_ns >= self.min_ns


def kind_of(record: Record) -> str:
    """Return the record's kind as `--kind` and JSON spell it."""
    return str(record.__struct_config__.tag)


def pod_key(owner: Owner) -> str | None:
    """Return `namespace/name`, or None where no source told of the pod."""
    return f"{owner.namespace}/{owner.pod_name}" if owner.pod_name else None


def owner_text(owner: Owner | None, cgroup_id: int) -> str:
    """Return the shortest true name of who a cgroup belongs to; an unknown one shows its id."""
    if owner is None:
        return f"cgroup {cgroup_id}" if cgroup_id else "-"
    if owner.kind in (OwnerKind.SYSTEM, OwnerKind.ROOT):
        return owner.path or "/"
    if owner.host_application:
        return f"host:{owner.host_application}"
    name = pod_key(owner) or f"pod {owner.pod_uid}"
    match owner.kind:
        case OwnerKind.CONTAINER | OwnerKind.NESTED if owner.container_name:
            return f"{name}[{owner.container_name}]"
        case OwnerKind.SANDBOX:
            return f"{name}[sandbox]"
    return name


def trace_line(record: Record, owner: Owner | None, wall: datetime) -> str:
    """Return the record as one line; the pod's name is cut from the left, where namespaces repeat."""
    name = owner_text(owner, record.cgroup_id)
    if len(name) > _POD_COLUMNS:
        name = "…" + name[-(_POD_COLUMNS - 1) :]
    event, what = _what(record)
    return f"{wall:%H:%M:%S.%f} {event:<8} {name:<{_POD_COLUMNS}} {what}"


def trace_json(record: Record, owner: Owner | None, wall: datetime) -> bytes:
    """Return the record as one JSON object: its own fields, `time`, and `owner` (null: unknown)."""
    fields: dict[str, Any] = {"time": wall.isoformat(), **msgspec.to_builtins(record)}
    fields["owner"] = msgspec.to_builtins(owner) if owner else None
    return msgspec.json.encode(fields)


def _what(record: Record) -> tuple[str, str]:
    match record:
        case ReclaimStall():
            whose = "node" if record.is_global else "limit"
            got = format_bytes(record.nr_reclaimed * PAGE_BYTES)
            return "reclaim", f"{whose:<5} {format_ns(record.delta_ns):>7} {got:>8} {record.comm}"
        case OomKill():
            return "oom-kill", f"{'node' if record.is_global else 'limit':<5} {record.comm} ({record.tgid})"
        case CgroupBirth():
            return "born", _short(record.name)
        case CgroupDeath():
            return "died", _short(record.name)
        case CgroupRename():
            return "renamed", f"now {_short(record.name)}"
        case KswapdRun():
            return "kswapd", f"node {record.nid} awake {format_ns(record.delta_ns)}"
        case _:
            assert_never(record)


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:13]}…{name[-13:]}"
