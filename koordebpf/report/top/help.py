"""The help of `koordebpf top`, key `?`. 60 columns."""

from __future__ import annotations

_TABLE = """\
Sort
  s stall   u usage   g growth   t time left   n name
Rows
  v     pods, containers, cgroups
  r     as a tree: what is part of what
  /     only rows with a text in their name; Esc drops it
  l     the ledger: who stalls on whose account
Look closer
  ↑ ↓ PgUp PgDn Home End   mark a row
  Enter   that row alone, with what it was before
  Esc     back
"""
_REPLAY = """\
Time
  t T     one round on, one back
  j J     a minute on, one back
  d D     the next decision, the one before
"""
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
    """Return its lines; with `replays` the keys of time travel are among them."""
    return [*_TABLE.splitlines(), *(_REPLAY.splitlines() if replays else []), *_COLUMNS.splitlines()]
