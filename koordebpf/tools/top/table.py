"""The table of `koordebpf top`: as many columns as there is room for, the name in what is left."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

from koordebpf.report.record_line import shortened
from koordebpf.report.top import (
    TopRow,
    blamed,
    bytes_text,
    full_text,
    growth_text,
    some_text,
    time_text,
    used_text,
)

LEAST_WIDTH = 60
MOST_WIDTH = 200
_NAME = 24  # below it a column is given up
_WIDEST_NAME = 64
_INDENT = "  "
_GIVEN_UP = ("FULL%", "BY", "GROWTH/s", "QOS", "OOM IN")  # in this order


class _Column(NamedTuple):
    heading: str
    width: int
    text: Callable[[TopRow], str]
    left: bool = False


_COLUMNS = (
    _Column("QOS", 5, lambda row: row.qos, left=True),
    _Column("USED", 8, used_text),
    _Column("GROWTH/s", 8, growth_text),
    _Column("SOME%", 6, some_text),
    _Column("FULL%", 6, full_text),
    _Column("BY", 5, blamed, left=True),
    _Column("OOM IN", 11, lambda row: time_text(row.full_in)),
)
# Where there is room, in this order.
_BESIDES = (
    _Column("CACHE", 8, lambda row: bytes_text(row.file_bytes)),
    _Column("LIMIT", 8, lambda row: bytes_text(row.limit_bytes)),
    _Column("PRIORITY", 8, lambda row: "-" if row.priority is None else str(row.priority)),
)


class Layout(NamedTuple):
    """Which columns there are, and how wide the name is."""

    name: int
    columns: tuple[_Column, ...]

    def heading(self, level: str) -> str:
        """Return the line above the rows."""
        return self._line(f"{level.upper():<{self.name}}", (each.heading for each in self.columns))

    def line(self, row: TopRow, name: str | None = None) -> str:
        """Return a row; `name`: in place of its own."""
        shown = shortened(row.name if name is None else name, self.name)
        return self._line(f"{shown:<{self.name}}", (each.text(row) for each in self.columns))

    def _line(self, name: str, cells: Iterable[str]) -> str:
        texts = zip(self.columns, cells, strict=True)
        return " ".join([name, *(text.ljust(of.width) if of.left else text.rjust(of.width) for of, text in texts)])


def layout(width: int, longest_name: int) -> Layout:
    """Return what fits into a width, of rows whose longest name has so many characters.

    >>> layout(80, 99).name, [each.heading for each in layout(60, 9).columns]
    (24, ['QOS', 'USED', 'SOME%', 'OOM IN'])
    """
    columns = list(_COLUMNS)
    for heading in _GIVEN_UP:
        if width - _width(columns) >= _NAME:
            break
        columns = [each for each in columns if each.heading != heading]
    name = min(max(longest_name, _NAME), _WIDEST_NAME)
    for each in _BESIDES:
        if width - _width([*columns, each]) >= name:
            columns.append(each)
    return Layout(max(width - _width(columns), 1), tuple(columns))


def _width(columns: Sequence[_Column]) -> int:
    return sum(each.width + 1 for each in columns)


class Placed(NamedTuple):
    """A row of a tree, with its name as it stands there."""

    row: TopRow
    name: str


def as_tree(rows: Sequence[TopRow]) -> list[Placed]:
    """Return rows below those that they are part of, by their names; siblings stay in their order.

    `shop/web[main]` is part of `shop/web`, `kubepods/burstable` of `kubepods`.
    """
    first: dict[str, TopRow] = {}  # of two rows of one name, what is below stands below the first
    for row in rows:
        first.setdefault(row.name, row)
    below: dict[str | None, list[TopRow]] = {}
    for row in rows:
        below.setdefault(_parent(row.name, first), []).append(row)
    placed: list[Placed] = []
    waiting = [(row, 0) for row in reversed(below.get(None, []))]
    while waiting:
        row, depth = waiting.pop()
        parent = _parent(row.name, first)
        own = row.name if parent is None else row.name[len(parent) :].lstrip("/")
        placed.append(Placed(row, _INDENT * depth + own))
        if first[row.name] is row:
            waiting += [(each, depth + 1) for each in reversed(below.get(row.name, []))]
    return placed


def _parent(name: str, names: Container[str]) -> str | None:
    at = len(name)
    while at > 0:
        at = max(name.rfind("/", 0, at), name.rfind("[", 0, at))
        if at > 0 and name[:at] in names:
            return name[:at]
    return None
