"""What of a Node's status and annotation is compared with what it should have, and what is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordebpf.controller.batch.written import ORIGIN_ANNOTATION, origin_annotation, wanted_amounts, written_amounts
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.policy.batch.facts import Calculation, CpuMemory
from koordebpf.policy.batch.formulas import NodeResult
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY

CPU, MEMORY = f"{ORIGIN_ANNOTATION} {BATCH_CPU}", f"{ORIGIN_ANNOTATION} {BATCH_MEMORY}"
WANTED = NodeResult({BATCH_CPU: Calculation(BATCH_CPU, 5)}, origin=CpuMemory(7, 9))
RESET = NodeResult({BATCH_CPU: Calculation(BATCH_CPU, None)}, origin=CpuMemory(7, 9), reset="it is off")


def node(annotations: dict[str, str] | None) -> ColocationNode:
    return ColocationNode("n", "u", None, annotations)


def origin(written: Any) -> dict[str, str]:
    return {ORIGIN_ANNOTATION: written if isinstance(written, str) else json.dumps({"resources": written})}


def test_the_annotation_is_wanted_with_the_amounts_and_not_of_a_node_that_is_reset() -> None:
    assert wanted_amounts(WANTED) == {BATCH_CPU: 5, CPU: 7, MEMORY: 9}
    assert wanted_amounts(RESET) == {BATCH_CPU: None, CPU: None, MEMORY: None}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, (None, None)),
        ({}, (None, None)),
        (origin({BATCH_CPU: "7", BATCH_MEMORY: "9"}), (7, 9)),
        (origin({BATCH_CPU: "7"}), (None, None)),
        (origin({BATCH_CPU: "7", BATCH_MEMORY: "much"}), (None, None)),
        (origin("{"), (None, None)),
        (origin('{"resources": []}'), (None, None)),
    ],
)
def test_an_annotation_that_cannot_be_read_is_none(annotations: Any, expected: tuple[Any, Any]) -> None:
    found = written_amounts(node(annotations), wanted_amounts(WANTED))
    assert (found[CPU], found[MEMORY]) == expected


def test_an_annotation_of_zeros_is_none_where_none_is_wanted() -> None:
    there = node(origin({BATCH_CPU: "0", BATCH_MEMORY: "1"}))
    found = written_amounts(there, wanted_amounts(RESET))
    assert (found[CPU], found[MEMORY]) == (None, 1)
    found = written_amounts(there, wanted_amounts(WANTED))
    assert (found[CPU], found[MEMORY]) == (0, 1)


@pytest.mark.parametrize(
    ("annotations", "removed"), [(None, {}), ({"other": ""}, {}), (origin({}), {ORIGIN_ANNOTATION: None})]
)
def test_it_is_removed_of_a_node_that_is_reset_where_it_is_there(annotations: Any, removed: dict[str, None]) -> None:
    assert origin_annotation(node(annotations), RESET) == removed


def test_its_amounts_are_written_as_text() -> None:
    (text,) = origin_annotation(node(None), WANTED).values()
    assert json.loads(text or "") == {"resources": {BATCH_CPU: "7", BATCH_MEMORY: "9"}}
