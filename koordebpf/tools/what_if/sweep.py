"""`--set SETTING=FROM..TO:STEP`: several values of one setting, and every combination of several."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from koordebpf.errors import ConfigError

MOST = 64  # configurations. Why: each costs as much as a replay, and no page shows more
_RANGE = re.compile(r"(?P<first>-?[0-9.]+?)\.\.(?P<last>-?[0-9.]+?)(?::(?P<step>[0-9.]+))?")
_RULE = "must be SETTING=VALUE, SETTING=A,B,C or SETTING=FROM..TO:STEP"


class Sweep(msgspec.Struct, frozen=True):
    """One setting and its values, as they are written in a file."""

    name: str
    values: tuple[Any, ...]


def parse_sweep(entry: str) -> Sweep:
    """Return what one --set names; the values are JSON, or plain text.

    Raises:  ConfigError: it has no value, or its range no end.
    """
    name, has_value, text = entry.partition("=")
    name, text = name.strip(), text.strip()
    if not has_value or not name or not text:
        raise ConfigError("--set", entry, _RULE)
    if found := _RANGE.fullmatch(text):
        return Sweep(name, _numbers(entry, found["first"], found["last"], found["step"] or "1"))
    if text[0] in '[{"':
        return Sweep(name, (_value(text),))
    return Sweep(name, tuple(_value(each.strip()) for each in text.split(",")))


def combinations(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """Return every combination of the values, the last setting's values first.

    Raises:  ConfigError: a setting is there twice, or there are too many.
    """
    names = [each.name for each in sweeps]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("--set", name, "must be there once: SETTING=A,B,C has several values")
    count = 1
    for each in sweeps:
        count *= len(each.values)
    if count > MOST:
        raise ConfigError("--set", f"{count} combinations", f"must be {MOST} or fewer")
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(each.values for each in sweeps))]


def _numbers(entry: str, first: str, last: str, step: str) -> tuple[Any, ...]:
    try:
        low, high, by = Decimal(first), Decimal(last), Decimal(step)
    except InvalidOperation:
        raise ConfigError("--set", entry, _RULE) from None
    if by <= 0 or high < low:
        raise ConfigError("--set", entry, "must go up, by a step above 0")
    if (high - low) / by >= MOST:
        raise ConfigError("--set", entry, f"must be {MOST} values or fewer")
    values = [low + by * number for number in range(int((high - low) / by) + 1)]
    return tuple(int(each) if each == each.to_integral_value() else float(each) for each in values)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
