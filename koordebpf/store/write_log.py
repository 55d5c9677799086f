"""How changed files are reported: a line of the audit, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.units import format_utc

_SCHEMA: Literal["koordebpf.write/v1"] = "koordebpf.write/v1"
WRITE_LINE = f'"schema":"{_SCHEMA}"'.encode()  # no other line of the audit has it
# By the name of errno(3).
_REMEDIES = {
    "EROFS": "mount the cgroup file system writable",
    "EACCES": "run the agent as root",
    "EPERM": "run the agent as root",
    "ENOENT": "there is no such file here; koordebpf doctor says why",
}


class AuditedWrite(msgspec.Struct, frozen=True):
    """One changed file as a line of the audit log, beside the lines of evictions. `time` is RFC 3339 UTC."""

    schema: Literal["koordebpf.write/v1"]
    time: str
    node: str
    change: FileChange


def audited_write(change: FileChange, node: str, wall_s: float) -> AuditedWrite:
    """Return the line."""
    return AuditedWrite(_SCHEMA, format_utc(wall_s), node, change)


def alike(changes: Sequence[FileChange]) -> list[list[FileChange]]:
    """Return changes of one round, those of one kind together: same file name, values and end. Steps are left out."""
    kinds: dict[tuple[object, ...], list[FileChange]] = {}
    for change in changes:
        if change.is_final:
            name = change.path.rpartition("/")[2]
            shown = (change.old, change.new, change.result, change.detail, change.reason, change.is_correction)
            kinds.setdefault((name, *shown), []).append(change)
    return list(kinds.values())


def write_sentence(change: FileChange, more: int = 0) -> str:
    """Return what became of one file, and of so many more that were changed alike, for people."""
    files = f"{change.path} and {more} more" if more else change.path
    step = f"{files}: {change.old or 'empty'} → {change.new or 'empty'}"
    match change.result:
        case WriteResult.WRITTEN if change.is_correction:
            return f"{step}, set right after another process: {change.reason}"
        case WriteResult.WRITTEN:
            return f"{step}: {change.reason}"
        case WriteResult.DRY_RUN:
            return f"{step} (dry run): {change.reason}"
        case _:
            return f"{step} was not written: {why_not(change)}"


def why_not(change: FileChange) -> str:
    """Return why a file was not written, and what helps where the operator can help."""
    remedy = _REMEDIES.get(change.detail)
    return f"{change.detail}: {remedy}" if remedy else change.detail
