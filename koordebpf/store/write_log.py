"""How changed files and refused requests are reported: a line of the audit, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.policy.strategy import RequestNews
from koordebpf.units import format_utc

_REQUEST: Literal["koordebpf.request/v1"] = "koordebpf.request/v1"
REQUEST_LINE = f'"schema":"{_REQUEST}"'.encode()  # no other line of the audit has it
_WRITE: Literal["koordebpf.write/v1"] = "koordebpf.write/v1"
WRITE_LINE = f'"schema":"{_WRITE}"'.encode()  # no other line of the audit has it
# By the name of errno(3).
_REMEDIES = {
    "EROFS": "mount the cgroup file system writable",
    "EACCES": "run the agent as root",
    "EPERM": "run the agent as root",
    "ENOENT": "there is no such file here; koordebpf doctor says why",
}


class AuditedRequest(msgspec.Struct, frozen=True):
    """One request as a line of the audit log, beside the lines of evictions. `time` is RFC 3339 UTC."""

    schema: Literal["koordebpf.request/v1"]
    time: str
    node: str
    request: RequestNews


def audited_request(request: RequestNews, node: str, wall_s: float) -> AuditedRequest:
    """Return the line."""
    return AuditedRequest(_REQUEST, format_utc(wall_s), node, request)


def request_sentence(request: RequestNews) -> str:
    """Return what became of one request, for people."""
    pod = f"{request.namespace}/{request.name}" if request.name else f"pod {request.uid}"
    if request.outcome == "dry_run":
        return f"dry run of {request.plugin}, {pod} is not evicted: {request.reason}"
    return f"{request.plugin} asks for {pod} and is refused: {request.reason}"


class AuditedWrite(msgspec.Struct, frozen=True):
    """One changed file as a line of the audit log, beside the lines of evictions. `time` is RFC 3339 UTC."""

    schema: Literal["koordebpf.write/v1"]
    time: str
    node: str
    change: FileChange


def audited_write(change: FileChange, node: str, wall_s: float) -> AuditedWrite:
    """Return the line."""
    return AuditedWrite(_WRITE, format_utc(wall_s), node, change)


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
