"""What an agent, or a snapshot, answers to questions about its series: every aggregation of each series asked for."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import parse_qs

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.state.series.aggregate import Aggregated, aggregated
from koordebpf.state.series.block import Window
from koordebpf.state.series.kinds import KINDS, SeriesKey
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_S

_SELECTOR: Final = re.compile(r"\s*(?P<kind>[A-Za-z_]\w*)\s*(?:\{(?P<properties>.*)\})?\s*", re.DOTALL)
_PROPERTY: Final = re.compile(r'\s*(?P<name>[A-Za-z_]\w*)\s*=\s*"(?P<value>(?:[^"\\\n]|\\["\\])*)"\s*(?:,|$)')
_RULE: Final = 'must be a kind, and properties in braces: pod_cpu_usage{pod_uid="…"}'
_TRIES: Final = 50
_AGAIN_S: Final = 0.001
_NOTHING: Final = Window([])
DEFAULT_WINDOW_NS: Final = 300 * NS_PER_S
_TOO_LONG_NS: Final = 10**18


# Which series a person asks for, as Prometheus writes it: `pod_cpu_usage{pod_uid="…"}`.


class Selector(msgspec.Struct, frozen=True):
    """Series of a kind whose given properties have these values; none given: all of the kind."""

    kind: str
    properties: dict[str, str]


def selector_of(text: str, kinds: Iterable[str] = ()) -> Selector:
    r"""Return what the text asks for. `kinds` are those there are beside koordlet's.

    Raises:  ConfigError: it is none, or the kind or one of the properties is not known; with names that are near.
    >>> selector_of('pod_cpu_usage{pod_uid="a"}')
    Selector(kind='pod_cpu_usage', properties={'pod_uid': 'a'})
    """
    found = _SELECTOR.fullmatch(text)
    if found is None:
        raise ConfigError("QUERY", text, _RULE)
    kind = found["kind"]
    known = sorted({*KINDS, *kinds})
    if kind not in known:
        raise ConfigError("QUERY", kind, f"must be a kind of series{_near(kind, known)}")
    return Selector(kind, _properties(text, kind, found["properties"] or ""))


def selector_text(kind: str, properties: Iterable[tuple[str, str]]) -> str:
    r"""Return the text that asks for one series.

    >>> selector_text("pod_cpu_usage", [("pod_uid", "a")])
    'pod_cpu_usage{pod_uid="a"}'
    """
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in properties)
    return f"{kind}{{{inner}}}" if inner else kind


def _properties(text: str, kind: str, inner: str) -> dict[str, str]:
    names, properties, place = KINDS.get(kind, ()), dict[str, str](), 0
    while place < len(inner.rstrip()):
        found = _PROPERTY.match(inner, place)
        if found is None:
            raise ConfigError("QUERY", text, _RULE)
        name, place = found["name"], found.end()
        if name not in names:
            rule = f"must be a property of {kind}{_near(name, names)}" if names else f"is too much: {kind} has none"
            raise ConfigError("QUERY", name, rule)
        properties[name] = re.sub(r'\\(["\\])', r"\1", found["value"])
    return properties


def _near(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3)
    return f", such as {', '.join(near or known[:3])}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


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
