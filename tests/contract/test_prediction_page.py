"""The page on prediction: tests that it names exist, and its flags are koordlet's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from koordebpf.agent.config.schema import settings
from tests.contract.test_koordinator_page import cases_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/colocation/prediction.md").read_text()
ROWS = [
    line for line in PAGE.partition("## Where it differs")[2].splitlines() if line.startswith("| ") and "](" in line
]


def named(text: str) -> list[tuple[str, str]]:
    return re.findall(r'\]\(\.\./\.\./(tests/[\w/]+\.py) "([\w:]+)"\)', text)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:50])
def test_each_difference_is_shown_by_tests_that_exist(row):
    assert named(row)


def test_every_test_that_is_named_exists():
    assert len(ROWS) > 10
    assert [(path, test) for path, test in named(PAGE) if test not in cases_of(ROOT / path)] == []


def test_every_setting_stands_on_the_page():
    ours = {each.path.removeprefix("prediction.") for each in settings() if each.path.startswith("prediction.")}
    table = PAGE.partition("## koordlet's flags")[2].partition("## ")[0]
    assert ours and ours <= set(re.findall(r"`(\w+)`", table))
