"""The help of `koordebpf top`, key `?`. 60 columns, and no more lines than a terminal of 24 has room for."""

from __future__ import annotations

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


def help_lines(*, replays: bool) -> list[str]:
    """Return its lines; with `replays` the keys of time travel are among them, in which t does not sort."""
    keys = _SORT_IN_REPLAY + _KEYS + _REPLAY if replays else _SORT + _KEYS
    return [*keys.splitlines(), *_COLUMNS.splitlines()]
