"""Which files were written and why, out of audit lines, for people. 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.errors import ConfigError, json_error
from koordebpf.printable import page
from koordebpf.report.pages.columns import filled
from koordebpf.store.write_log import WRITE_LINE, AuditedWrite, alike, why_not


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
