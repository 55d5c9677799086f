"""The page of `koordebpf top` as lines, as wide as the terminal: the table, the ledger, one pod, or the help."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from koordebpf.printable import printable
from koordebpf.report.pages.ledger import ledger_lines
from koordebpf.report.top.cells import bytes_text, time_text
from koordebpf.report.top.choice import Choice, matches
from koordebpf.report.top.detail import detail_lines
from koordebpf.report.top.help import help_lines
from koordebpf.report.top.table import Placed, as_tree, layout
from koordebpf.report.top.trail import Sample
from koordebpf.report.top.values import TopPage, TopRow
from koordebpf.state.measured import TimeTo, is_mostly_kernel
from koordebpf.units import NS_PER_S, format_bytes, format_ns

Style = Literal["", "bold", "red", "yellow", "dim", "reverse"]
WIDTH = 80

_SLOW_PERCENT = 1.0  # a hundredth of the time: 10 ms of each second
_FELT_PERCENT = 0.1
_SOON_NS = 60 * NS_PER_S
_NEAR = 0.95  # of the threshold


class Around(msgspec.Struct, frozen=True):
    """What is shown besides the page.

    `inner`   containers, where they are asked for; `trails`: what rows were before, by name.
    `note`    a line at the top; `hint`: what to do where no pod has a name.
    `replays` the keys of time travel are there.
    """

    inner: tuple[TopRow, ...] = ()
    trails: Mapping[str, Sequence[Sample]] = {}
    note: str = ""
    hint: str = ""
    replays: bool = False


ALONE = Around()


def page_lines(
    page: TopPage, choice: Choice, height: int | None = None, *, width: int = WIDTH, around: Around = ALONE
) -> list[tuple[str, Style]]:
    """Return the page as lines of at most `width` columns with their style; `height`: no more lines than that."""
    lines: list[tuple[str, Style]] = [(line, "bold") for line in _wrapped(around.note, width)] if around.note else []
    if choice.help:
        lines += [(line, "bold" if not line.startswith(" ") else "") for line in help_lines(replays=around.replays)]
        if height is not None and 0 < height < len(lines):
            lines[height - 1 :] = [(f"… and {len(lines) - height + 1} lines more: a higher terminal has room", "dim")]
        return _cut(lines, width, height)
    lines += [
        (each, _node_style(page) if at == 0 else "")
        for at, line in enumerate(_head(page))
        for each in _wrapped(line, width)
    ]
    if choice.ledger:
        lines += [
            (line, "" if at else "bold")
            for at, line in enumerate(ledger_lines(page.ledger) if page.ledger else ["no ledger is kept here"])
        ]
    elif choice.detail is not None:
        rows = [row for row in (*page.rows, *around.inner) if row.name == choice.detail]
        inner = [row for row in around.inner if row.name.startswith(f"{choice.detail}[")]
        trail = around.trails.get(choice.detail, ())
        lines += detail_lines(choice.detail, rows[0] if rows else None, page.ledger, trail, inner, width)
    else:
        lines += _table(page, choice, None if height is None else height - len(lines), width, around)
    return _cut(lines, width, height)


def shown_rows(page: TopPage, choice: Choice, around: Around = ALONE) -> list[Placed]:
    """Return the rows that pass the filter, in their order, with their names as they stand there."""
    if choice.tree:
        rows = [*page.rows, *around.inner]
        return as_tree([row for row in rows if matches(choice, row.name)])
    return [Placed(row, row.name) for row in page.rows if matches(choice, row.name)]


def _table(page: TopPage, choice: Choice, height: int | None, width: int, around: Around) -> list[tuple[str, Style]]:
    rows = shown_rows(page, choice, around)
    columns = layout(width, max((len(row.name) for row in rows), default=0))
    lines: list[tuple[str, Style]] = [(columns.heading(page.level), "bold")]
    selected = min(choice.selected, len(rows) - 1)
    room = len(rows) if height is None else max(height - 1, 0)
    first = max(selected - room + 1, 0)
    for at, placed in enumerate(rows[first : first + room], start=first):
        lines.append((columns.line(placed.row, placed.name), "reverse" if at == selected else _style(placed.row)))
    if not rows:
        lines.append(
            (
                f"no {page.level} has {choice.filter!r} in its name" if choice.filter else f"no {page.level} is known",
                "dim",
            )
        )
    if around.hint and page.level == "pod" and all(row.row.name.startswith("? ") for row in rows):
        lines += [(line, "dim") for line in _wrapped(around.hint, width)]
    return lines


def _cut(lines: Sequence[tuple[str, Style]], width: int, height: int | None) -> list[tuple[str, Style]]:
    return [(printable(line)[:width], style) for line, style in lines[:height]]


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(printable(line), width, subsequent_indent="  ", break_on_hyphens=False) or [""]


def _head(page: TopPage) -> list[str]:
    node, forecast = page.node, page.forecast
    percent = node.known_used_bytes * 100 // page.capacity_bytes if page.capacity_bytes else 0
    first = f"node {format_bytes(node.known_used_bytes)} of {format_bytes(page.capacity_bytes)} ({percent} %)"
    if node.growth_bytes_per_s is not None:
        growth = round(node.growth_bytes_per_s)
        first += f", {'grows' if growth >= 0 else 'shrinks'} {bytes_text(abs(growth))}/s"
    if page.threshold_bytes is not None:
        first += f", evicts above {format_bytes(page.threshold_bytes)}"
    times = []
    if forecast and forecast.threshold:
        times.append(f"evicts {_in(forecast.threshold)}")
    if forecast and forecast.oom:
        times.append(f"full {_in(forecast.oom)}")
    stalls = []
    if node.stall:
        stalls.append(f"stalled {format_ns(node.stall.global_ns)} in {format_ns(node.stall.window_ns)}")
    if node.psi_some:
        full = f" full {node.psi_full.avg10:.1f}" if node.psi_full else ""
        stalls.append(f"PSI some {node.psi_some.avg10:.1f}{full} %")
    elif node.shares:
        stalls.append(f"PSI some ~{node.shares.some.avg10:.1f} %")
    footer = page.quality.short if page.quality else "signals: as recorded"
    if any(_is_derived(row) for row in page.rows):
        footer += ", ~ worked out from them"
    if any(is_mostly_kernel(row.kernel_bytes, row.used_bytes) for row in page.rows):
        footer += ", K: mostly kernel memory"
    lines = [first, " · ".join(times) or "does not fill up", " · ".join(stalls) or "no stall"]
    if cpu := page.cpu:
        be, limit, used = (
            f"{each / 1000:.2f}" for each in (cpu.be_used_millicpu, cpu.be_limit_millicpu, cpu.used_millicpu)
        )
        lines.append(f"CPUs: best-effort {be} of at most {limit}, node {used} of {cpu.online}")
    return [*lines, footer]


def _in(left: TimeTo) -> str:
    return f"in {time_text(left)}" if left.point_ns > 0 else "now"


def _node_style(page: TopPage) -> Style:
    mark = page.threshold_bytes or page.capacity_bytes
    if not mark or page.node.known_used_bytes < mark * _NEAR:
        return ""
    return "red" if page.node.known_used_bytes >= mark else "yellow"


def _style(row: TopRow) -> Style:
    some = row.shares.some.avg10 if row.shares else 0.0
    if some >= _SLOW_PERCENT:
        return "red"
    is_full_soon = row.full_in is not None and row.full_in.point_ns < _SOON_NS
    return "yellow" if some >= _FELT_PERCENT or is_full_soon else ""


def _is_derived(row: TopRow) -> bool:
    return row.shares is not None and row.shares.derived
