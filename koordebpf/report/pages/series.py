"""What series say of a window, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from koordebpf.report.pages.columns import table_lines
from koordebpf.report.series import SeriesAnswer, SeriesRow, selector_text
from koordebpf.state.series.aggregate import Aggregated
from koordebpf.state.series.kinds import KINDS
from koordebpf.units import NS_PER_S, format_bytes

_ALL: Final = ("count", "avg", "p50", "p90", "p95", "p99", "last")
_NO_SAMPLE: Final = "-"


class KindLine(msgspec.Struct, frozen=True):
    """How many series of a kind there are."""

    kind: str
    series: int


class SeriesLine(msgspec.Struct, frozen=True):
    """One series. `values`: by aggregation; None: without a sample in the window."""

    kind: str
    properties: Mapping[str, str]
    values: Mapping[str, float | None] | None


def kinds_page(kinds: Mapping[str, int]) -> str:
    """Return a line for each kind of which there are series."""
    if not kinds:
        return "no series yet"
    width = max(map(len, kinds))
    rows = [("kind", "series", "properties")]
    rows += [(kind, str(count), " ".join(KINDS.get(kind, ()))) for kind, count in sorted(kinds.items())]
    return "\n".join(f"{kind:{width}}  {count:>6}  {names}".rstrip() for kind, count, names in rows)


def series_page(answer: SeriesAnswer, aggregation: str | None) -> str:
    """Return a line for each series, with one aggregation or, None, with all of them."""
    if not answer.rows:
        return f"no series of {answer.kind} has these properties"
    shown = _ALL if aggregation is None else (aggregation,)
    rows = [[_properties(row) or answer.kind, *_cells(answer.kind, row.values, shown)] for row in answer.rows]
    title = f"{answer.kind} of the last {answer.window_ns / NS_PER_S:g} s"
    return "\n".join([title, *table_lines(["series", *shown], rows, left=0)])


def values_by_name(values: Aggregated) -> Mapping[str, float]:
    """Return all that a window says by the names that `koordebpf metrics` has for it."""
    named: dict[str, float] = msgspec.structs.asdict(values)
    named["last"] = named.pop("latest")
    return named


def _properties(row: SeriesRow) -> str:
    return selector_text("", row.properties.items()).removeprefix("{").removesuffix("}")


def _cells(kind: str, values: Aggregated | None, shown: tuple[str, ...]) -> list[str]:
    if values is None:
        return [_NO_SAMPLE] * len(shown)
    found = values_by_name(values)
    return [str(found[name]) if name == "count" else _number(kind, found[name]) for name in shown]


def _number(kind: str, value: float) -> str:
    return format_bytes(int(value)) if "_memory_" in kind else f"{value:.3f}"
