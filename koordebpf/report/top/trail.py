"""What rows of `koordebpf top` were before: samples for sparklines. In memory, bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from koordebpf.report.top.values import TopRow

SAMPLES = 120
_BARS = "▁▂▃▄▅▆▇█"


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
