"""Which series a person asks for, as Prometheus writes it: `pod_cpu_usage{pod_uid="…"}`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.state.series.kinds import KINDS

_SELECTOR: Final = re.compile(r"\s*(?P<kind>[A-Za-z_]\w*)\s*(?:\{(?P<properties>.*)\})?\s*", re.DOTALL)
_PROPERTY: Final = re.compile(r'\s*(?P<name>[A-Za-z_]\w*)\s*=\s*"(?P<value>(?:[^"\\\n]|\\["\\])*)"\s*(?:,|$)')
_RULE: Final = 'must be a kind, and properties in braces: pod_cpu_usage{pod_uid="…"}'


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
