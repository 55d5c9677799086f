"""What a round decides is recorded as JSON, whose objects have text as keys."""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Iterator, Mapping

import msgspec

import koordebpf.policy
from koordebpf.decision.decide_tick import TickDecision
from koordebpf.policy.strategy import Decision


def test_no_field_of_a_decision_has_other_keys_than_text() -> None:
    for each in pkgutil.walk_packages(koordebpf.policy.__path__, "koordebpf.policy."):
        importlib.import_module(each.name)
    seen: set[type] = set()
    kinds = [TickDecision, *Decision.__subclasses__()]
    assert len(kinds) > 10
    assert [place for kind in kinds for place in _odd_keys(kind, kind.__name__, seen)] == []


def _odd_keys(kind: typing.Any, place: str, seen: set[type]) -> Iterator[str]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (dict, Mapping) and not (isinstance(arguments[0], type) and issubclass(arguments[0], str)):
        yield f"{place}: {kind}"
    for each in arguments:
        yield from _odd_keys(each, place, seen)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        for name, hint in typing.get_type_hints(kind).items():
            yield from _odd_keys(hint, f"{place}.{name}", seen)
