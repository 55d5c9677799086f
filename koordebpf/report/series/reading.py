"""Reads the series from another thread than the loop's, to which they belong.

The reader looks whether the store changed while it was read, and reads again if it did.
"""

from __future__ import annotations

import time
from typing import Final

from koordebpf.state.series.kinds import SeriesKey
from koordebpf.state.series.lane import Window
from koordebpf.state.series.store import SeriesStore

_TRIES: Final = 50
_AGAIN_S: Final = 0.001
_NOTHING: Final = Window([])


def read_window(store: SeriesStore, key: SeriesKey, now_ns: int, window_ns: int) -> Window:
    """Return the samples within `window_ns` before `now_ns`; none where the store did not come to rest in 50 ms."""
    for _ in range(_TRIES):
        before = store.changes
        if before % 2 == 0:
            try:
                window = store.window(key, now_ns, window_ns)
            except (IndexError, ValueError):  # in the middle of a change
                window = _NOTHING
            if store.changes == before:
                return window
        time.sleep(_AGAIN_S)
    return _NOTHING
