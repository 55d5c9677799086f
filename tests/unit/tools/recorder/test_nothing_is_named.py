"""A marker in every string of everything that is recorded, built from the types: redacted, it is nowhere."""

from __future__ import annotations

import collections.abc
import enum
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest

from koordebpf.decision.decide_tick import TickFrame
from koordebpf.decision.strategies import PARTS
from koordebpf.slo.spec import NodeSLOSpec
from koordebpf.state.measured import MeasuredParts
from koordebpf.store.recorder.recorder import Recorder
from koordebpf.store.recorder.values import recorded, signals_seen
from koordebpf.store.sink import NodeSampled, RoundEnded
from koordebpf.tools.recorder.redact import Names

MARK = "zqmarkzq"
# What a marker may look like: a name, or a part of what is kept otherwise.
FORMS = (
    MARK,
    MARK.upper(),
    f"{MARK} is the name",
    f"evicting {MARK}/{MARK}-0, 7 MiB",
    f"/sys/fs/cgroup/memory/kubepods/{MARK}/memory.max",
    f"/sys/fs/cgroup/memory.{MARK}",
    f"/kubepods-pod12345678-9abc-def0-1234-56789abcdef0{MARK}.slice",
    f"{MARK}=1",
    f"koordinator.sh/{MARK}",
    f"kubernetes.io/{MARK}",
    f"containerd://{MARK}",
    f'{{"{MARK}": ["{MARK}"], "name": "{MARK}"}}',
    f"{{{MARK}",
    f"10Gi{MARK}",
    f"2027-01-15T08:00:00Z{MARK}",
    f"0-3,{MARK}",
    f"default 7 {MARK}=8",
    f"system-{MARK}-critical",
    f"n{MARK}",
    f"\n{MARK}\x00\u202e",
)


def filled(kind: Any, form: str) -> Any:
    """Return a value of a type, all fields set, with this text in every string and key."""
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        patterns = [each.pattern for each in inner[1:] if isinstance(each, msgspec.Meta) and each.pattern]
        return f"{MARK}={MARK}" if patterns else filled(inner[0], form)
    if origin is Literal:
        return inner[0]
    if origin in (typing.Union, types.UnionType):
        return filled(next(each for each in inner if each not in (type(None), msgspec.UnsetType)), form)
    if origin in (dict, collections.abc.Mapping):
        return {filled(inner[0], form): filled(inner[1], form)}
    if origin in (list, set, frozenset, collections.abc.Sequence):
        return [filled(inner[0], form)]
    if origin is tuple:
        return tuple(filled(each, form) for each in inner if each is not Ellipsis)
    if kind is MeasuredParts:
        return MeasuredParts({name: filled(each, form) for name, each in PARTS.items()})
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{each.name: filled(each.type, form) for each in msgspec.structs.fields(kind)})
    return _plain(kind, form)


def _plain(kind: Any, form: str) -> Any:
    if kind is Any or kind is object:
        return {form: [form, {form: form}], "name": form}
    if kind is msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode({form: form, "spec": {form: [form]}}))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(form)
    if typing.is_typeddict(kind) or hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return kind(*(filled(each, form) for each in hints.values()))
    known: dict[Any, Any] = {str: form, int: 7, float: 7.5, bool: True, bytes: form.encode(), type(None): None}
    return known[kind]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


def numbers(value: Any) -> Iterator[float | bool | None]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif not isinstance(value, str):
        yield value


def check(value: Any) -> None:
    """Assert that a marker is in it, and neither in its redacted form nor in what that has of it as raw text."""
    plain = msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))
    redacted = Names(bytes(32)).redacted(plain)
    left = [each for each in strings(redacted) if re.search(MARK, each, re.IGNORECASE)]
    assert left == []
    assert list(numbers(redacted)) == list(numbers(plain))


EVENTS = [each for each in Recorder.takes if each not in (RoundEnded, NodeSampled)]


@pytest.mark.parametrize("form", FORMS)
def test_of_no_event_a_name_is_left(form: str) -> None:
    for kind in EVENTS:
        check(recorded(filled(kind, form), 7.5).data)
    check(signals_seen(filled(typing.get_type_hints(signals_seen)["quality"], form), form, 7.5).data)


@pytest.mark.parametrize("form", FORMS)
def test_of_no_round_a_name_is_left(form: str) -> None:
    check(filled(TickFrame, form))
    check(filled(NodeSLOSpec, form))


def test_there_are_events_with_names() -> None:
    assert len(EVENTS) >= 9
    assert all(
        MARK in str(recorded(filled(kind, MARK), 7.5).data) for kind in EVENTS if kind.__name__ != "AgentStopped"
    )
