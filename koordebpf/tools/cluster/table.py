"""Tables as kubectl prints them: as wide as what is in them, three spaces between columns."""

from __future__ import annotations

from collections.abc import Sequence

from koordebpf.printable import page, printable

_GAP = "   "


def kubectl_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows under their heading."""
    everything = [heading, *([printable(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(heading))]
    return page(
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in everything
    )
