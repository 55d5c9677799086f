"""What an agent, or a snapshot, answers to questions about its series: every aggregation of each series asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qs

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.state.series.aggregate import Aggregated, aggregated
from koordebpf.state.series.kinds import KINDS, SeriesKey
from koordebpf.state.series.lane import Window
from koordebpf.state.series.selector import selector_of
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_S

_TRIES: Final = 50
_AGAIN_S: Final = 0.001
_NOTHING: Final = Window([])
DEFAULT_WINDOW_NS: Final = 300 * NS_PER_S
_TOO_LONG_NS: Final = 10**18


# Reads the series from another thread than the loop's, to which they belong.
#
# The reader looks whether the store changed while it was read, and reads again if it did.


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


class SeriesRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One series; `values` is absent where it has no sample in the window."""

    properties: dict[str, str]
    values: Aggregated | None = None


class SeriesAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of a kind, or how many series there are of each kind, or what is wrong with the question (`about`)."""

    kind: str = ""
    window_ns: int = 0
    rows: tuple[SeriesRow, ...] = ()
    kinds: dict[str, int] = {}
    about: str = ""
    problem: str = ""


def series_answer(store: SeriesStore, query: str) -> SeriesAnswer:
    """Answer the query of a URL: `query=SELECTOR&window_ns=N`. Without a selector: which kinds there are."""
    asked = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    try:
        window_ns = int(asked.get("window_ns", DEFAULT_WINDOW_NS))
    except ValueError:
        window_ns = 0
    if not 0 < window_ns < _TOO_LONG_NS:
        return SeriesAnswer(about=f"window_ns={asked['window_ns']}", problem="must be a whole number above 0")
    if "query" not in asked:
        return SeriesAnswer(kinds=store.kinds())
    return answer_of(store, asked["query"], time.monotonic_ns(), window_ns)


def answer_of(store: SeriesStore, text: str, now_ns: int, window_ns: int) -> SeriesAnswer:
    """Answer what the selector asks for, as of `now_ns`."""
    try:
        selector = selector_of(text, store.kinds())
    except ConfigError as error:
        return SeriesAnswer(about=str(error.value), problem=error.rule)
    keys = store.keys(selector.kind, selector.properties)
    return SeriesAnswer(selector.kind, window_ns, tuple(_rows(store, keys, now_ns, window_ns)))


def _rows(store: SeriesStore, keys: list[SeriesKey], now_ns: int, window_ns: int) -> Iterator[SeriesRow]:
    for key in keys:
        names = KINDS.get(key[0]) or tuple(f"property_{number}" for number in range(1, len(key)))
        window = read_window(store, key, now_ns, window_ns)
        values = aggregated(window.values, window.last_ns - window.first_ns) if window.values else None
        yield SeriesRow(dict(zip(names, key[1:], strict=True)), values)
        time.sleep(0)  # the loop first
