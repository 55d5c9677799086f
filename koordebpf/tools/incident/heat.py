"""The ledgers of a recording, summed to one map of victims and what their stalls are charged to. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.report.incident.values import HeatMap
from koordebpf.state.measured import LedgerView
from koordebpf.units import format_ns

_MOST = 12  # victims, and causes. Why: as many columns as a page of paper has
OTHERS = "others"


class Ledgers:
    """Takes the ledger of each round in order and keeps one for each of its windows, so that no stall counts twice.

    `last_ns` is the wall clock of the last round: the windows are counted back from it.
    """

    def __init__(self, last_ns: int) -> None:
        self._last_ns = last_ns
        self._kept: dict[int, LedgerView] = {}
        self._window_ns = 0

    def take(self, wall_ns: int, ledger: LedgerView | None) -> None:
        """Take the ledger of one round; None: it has none."""
        if ledger is None or ledger.window_ns == 0:
            return
        self._window_ns = self._window_ns or ledger.window_ns
        self._kept[(self._last_ns - wall_ns) // self._window_ns] = ledger

    def map(self) -> HeatMap | None:
        """Return the sums, the largest first; None: no round has a ledger."""
        if not self._kept:
            return None
        covers = f"the ledgers of {len(self._kept)} × {format_ns(self._window_ns)}"
        return heat_map(self._kept.values(), covers)

    @property
    def has_any(self) -> bool:
        """Whether there was any ledger."""
        return bool(self._kept)


def heat_map(ledgers: Iterable[LedgerView], covers: str) -> HeatMap:
    """Return the sums of some ledgers; the containers of a pod count together, and the smallest as `others`."""
    pairs: dict[tuple[str, str], int] = {}
    for ledger in ledgers:
        for row in ledger.rows:
            cause = row.cause.kind if row.cause.kind in ("own limit", "unattributed") else row.cause.name
            pair = (row.victim.name, cause)
            pairs[pair] = pairs.get(pair, 0) + row.ns
    victims, causes = _first(_sums(pairs, 0)), _first(_sums(pairs, 1))
    cells = [[0] * len(causes) for _ in victims]
    for (victim, cause), ns in pairs.items():
        place = victims.index(victim if victim in victims else OTHERS)
        cells[place][causes.index(cause if cause in causes else OTHERS)] += ns
    return HeatMap(tuple(victims), tuple(causes), tuple(map(tuple, cells)), covers)


def _sums(pairs: dict[tuple[str, str], int], of: int) -> dict[str, int]:
    sums: dict[str, int] = {}
    for pair, ns in pairs.items():
        sums[pair[of]] = sums.get(pair[of], 0) + ns
    return sums


# `others` stands at the end, also where a ledger has summed up some itself.
def _first(sums: dict[str, int]) -> list[str]:
    order = sorted((name for name in sums if name != OTHERS), key=lambda name: (-sums[name], name))
    has_others = OTHERS in sums or len(order) > _MOST
    return [*order[:_MOST], OTHERS] if has_others else order
