"""Quantities as Go reads them.

Source: k8s.io/apimachinery v0.35.4 on amd64: ParseQuantity() of each text, Value() and MilliValue(); of several texts
those of their sum by Add(), as of the containers of a pod.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import ConfigError
from koordebpf.quantity import Quantity, parse_amount, parse_quantity, quantity_bytes, quantity_millicpu

ROWS = [json.loads(line) for line in (Path(__file__).parent / "quantities.jsonl").read_text().splitlines()]


def rows(*, is_read: bool, several: bool = False) -> list[Any]:
    found = [each for each in ROWS if ("value" in each) == is_read and (len(each["texts"]) > 1) == several]
    return [pytest.param(each, id="+".join(text[:30] for text in each["texts"]) or "empty") for each in found]


@pytest.mark.parametrize("row", rows(is_read=False))
def test_what_go_refuses_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be a Kubernetes quantity"):
        parse_quantity(row["texts"][0])


@pytest.mark.parametrize("row", rows(is_read=True))
def test_what_go_takes_is_the_same_number(row: dict[str, Any]) -> None:
    (text,) = row["texts"]
    if parse_quantity(text) < 0:
        with pytest.raises(ConfigError, match="must not be negative"):
            quantity_bytes(text)
        return
    # A number that wrapped around to a negative one is no amount.
    assert quantity_bytes(text) == max(row["value"], 0)
    assert quantity_millicpu(text) == max(row["milli"], 0)


@pytest.mark.parametrize("row", rows(is_read=True, several=True))
def test_a_sum_is_the_same_number(row: dict[str, Any]) -> None:
    found = functools.reduce(Quantity.plus, map(parse_amount, row["texts"]), Quantity())
    assert (found.value(), found.milli_value()) == (max(row["value"], 0), max(row["milli"], 0))
