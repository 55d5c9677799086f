"""One pod, container or cgroup alone: what it uses and used, and who makes it wait, or whom it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from koordebpf.report.pages.ledger import LEDGER_HEADER, ledger_line
from koordebpf.report.top.cells import bytes_text, full_text, growth_text, some_text, time_text, used_text
from koordebpf.report.top.table import layout
from koordebpf.report.top.trail import Sample, sample_of, sparkline
from koordebpf.report.top.values import TopRow
from koordebpf.state.measured import LedgerView
from koordebpf.units import format_ns

_LABEL = 10
_MOST_CHARGES = 6
_Line = tuple[str, Literal["", "bold", "dim"]]


def detail_lines(
    name: str,
    row: TopRow | None,
    ledger: LedgerView | None,
    trail: Sequence[Sample],
    inner: Sequence[TopRow],
    width: int,
) -> list[_Line]:
    """Return the page of one row; None: it is gone. `trail`: its samples, oldest first; `inner`: its containers."""
    lines: list[_Line] = [("", ""), (name, "bold")]
    if row is None:
        return [*lines, ("it is not there any more", "dim")]
    priority = "" if row.priority is None else f", priority {row.priority}"
    lines.append((f"{row.qos or 'no QoS label'}{priority}, full {_full(row)}", ""))
    samples = list(trail) or [sample_of(row)]
    limit = f" of {bytes_text(row.limit_bytes)}" if row.limit_bytes is not None else ""
    cache = f", page cache {bytes_text(row.file_bytes)}" if row.file_bytes is not None else ""
    lines += _plot(f"{used_text(row)}{limit}{cache}", "used", samples, lambda each: each.used_bytes, width)
    grows: Callable[[Sample], float | None] = lambda each: each.growth_bytes_per_s  # noqa: E731
    lines += _plot(f"{growth_text(row)}/s", "growth", samples, grows, width)
    waits = f"some {some_text(row)} %, full {full_text(row)} % of the last 10 s"
    lines += _plot(waits, "stalled", samples, lambda each: each.some_percent, width)
    if row.global_stall_ns or row.limit_stall_ns:
        shares = f"{format_ns(row.global_stall_ns)} for the node's shortage, {format_ns(row.limit_stall_ns)} at a limit"
        lines.append((f"{'':<{_LABEL}}{shares}, all tasks added up", ""))
    lines += _charges(name, ledger)
    if inner:
        columns = layout(width, max(len(each.name) for each in inner))
        lines += [("", ""), (columns.heading("container"), "bold")]
        lines += [(columns.line(each), "") for each in inner]
    return lines


def _full(row: TopRow) -> str:
    return f"in {time_text(row.full_in)}" if row.full_in else "never, as it grows now"


def _plot(
    now: str, label: str, samples: Sequence[Sample], value: Callable[[Sample], float | None], width: int
) -> list[_Line]:
    values = [value(each) for each in samples]
    return [(f"{label:<{_LABEL}}{now}", ""), (f"{'':<{_LABEL}}{sparkline(values, width - _LABEL)}", "")]


def _charges(name: str, ledger: LedgerView | None) -> list[_Line]:
    if ledger is None:
        return []
    rows = [each for each in ledger.rows if name in (each.victim.name, each.cause.name)][:_MOST_CHARGES]
    if not rows:
        return []
    return [("", ""), (LEDGER_HEADER, "bold"), *((ledger_line(each, ledger.window_ns), "") for each in rows)]
