"""The page of `koordebpf top` as lines, as wide as the terminal: the table, the ledger, one pod, or the help."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from koordebpf.printable import printable
from koordebpf.report.pages.plan import LEDGER_HEADER, ledger_line, ledger_lines
from koordebpf.report.top import (
    TopPage,
    TopRow,
    bytes_text,
    full_text,
    growth_text,
    some_text,
    time_text,
    used_text,
)
from koordebpf.state.measured import LedgerView, TimeTo, is_mostly_kernel
from koordebpf.tools.top.choice import Choice, matches
from koordebpf.tools.top.table import Placed, as_tree, layout
from koordebpf.units import NS_PER_S, format_bytes, format_ns

SAMPLES = 120
_BARS = "▁▂▃▄▅▆▇█"
_SORT = "Sort   s stall  u usage  g growth  t time left  n name\n"
_SORT_IN_REPLAY = "Sort   s stall  u usage  g growth  n name\n"
_KEYS = """\
Rows   v pods, containers, cgroups   r as a tree
       l the ledger: who stalls on whose account
       / only rows with a text in their name; Esc drops it
Look   ↑ ↓ PgUp PgDn Home End mark a row; Enter: it alone,
       with what it was before; Esc: back
"""
_REPLAY = "Time   t T a round on, back   j J a minute   d D a decision\n"
_COLUMNS = """\
Columns
  USED      what an eviction frees; K: mostly the kernel's
  GROWTH/s  of USED
  SOME%     of 10 s in which a task waited for memory
  FULL%     of 10 s in which all did
  BY        whose shortage: the node's, or a limit
  OOM IN    until its own limit kills
  ~ worked out from timed stalls, ≥ at least
Colours
  red: waits 1 % of the time or more; yellow: 0.1 %,
  or full within a minute. The node: above, or near,
  where pods are evicted.
q ends
"""
_LABEL = 10
_MOST_CHARGES = 6
_Line = tuple[str, Literal["", "bold", "dim"]]
Style = Literal["", "bold", "red", "yellow", "dim", "reverse"]
WIDTH = 80
_SLOW_PERCENT = 1.0  # a hundredth of the time: 10 ms of each second
_FELT_PERCENT = 0.1
_SOON_NS = 60 * NS_PER_S
_NEAR = 0.95  # of the threshold


# What rows were before: samples for sparklines. In memory, bounded.


class Sample(NamedTuple):
    """One row at one moment. None: not measured."""

    used_bytes: int | None
    growth_bytes_per_s: float | None
    some_percent: float | None


def sample_of(row: TopRow) -> Sample:
    """Return what is kept of a row."""
    return Sample(row.used_bytes, row.growth_bytes_per_s, row.shares.some.avg10 if row.shares else None)


class Trails:
    """The last 120 samples of each row that is there; of one that is gone nothing is kept."""

    def __init__(self) -> None:
        self._by_name: dict[str, deque[Sample]] = {}

    def push(self, rows: Iterable[TopRow]) -> None:
        """Take the rows of one moment."""
        now = {row.name: sample_of(row) for row in rows}
        for name in self._by_name.keys() - now.keys():
            del self._by_name[name]
        for name, sample in now.items():
            self._by_name.setdefault(name, deque(maxlen=SAMPLES)).append(sample)

    @property
    def by_name(self) -> Mapping[str, Sequence[Sample]]:
        """The samples of each row, oldest first."""
        return self._by_name


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last values as bars, the largest as high as a line; what was not measured is a space.

    >>> sparkline([0, 1, None, 7, 14], 4)
    '▁ ▄█'
    """
    shown = list(values[-width:]) if width > 0 else []
    top = max((value for value in shown if value is not None), default=0)
    return "".join(" " if value is None else _bar(value, top) for value in shown)


def _bar(value: float, top: float) -> str:
    if value <= 0:
        return _BARS[0]
    return _BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)]


# The lines.


def help_lines(*, replays: bool) -> list[str]:
    """Return its lines; with `replays` the keys of time travel are among them, in which t does not sort."""
    keys = _SORT_IN_REPLAY + _KEYS + _REPLAY if replays else _SORT + _KEYS
    return [*keys.splitlines(), *_COLUMNS.splitlines()]


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
    if page.memory:
        lines.append("in use: " + " · ".join(f"{name} {format_bytes(held)}" for name, held in page.memory.items()))
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
