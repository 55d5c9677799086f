"""The pages on Koordinator and Katalyst: each row is whole, and the tests that show it exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "deploy" / "koordinator.md"
STRICT = ("tests/scenarios/test_strict_compat.py", "tests/scenarios/test_strict_cpu_compat.py")
KATALYST = ROOT / "docs" / "katalyst.md"
COLUMNS = ["documented", "the original", "koordebpf", "`compat: strict`", "shown by"]


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row != COLUMNS and not set("".join(row)) <= set("-")]


def shown_by(text: str) -> list[tuple[str, str]]:
    """Return file and name of each test that is linked to: the link's title has the name, which is too long to show."""
    return re.findall(r'\]\(\.\./(tests/[\w/]+\.py) "([\w:]+)"\)', text)


@functools.cache
def cases_of(path: Path) -> frozenset[str]:
    names = []
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            names += [f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)]
        elif isinstance(node, ast.FunctionDef):
            names.append(node.name)
    return frozenset(name for name in names if name.rpartition("::")[2].startswith("test_"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1][:60])
class TestRow:
    def test_it_is_whole(self, row: list[str]) -> None:
        assert len(row) == len(COLUMNS)
        assert all(row[1:])

    def test_the_tests_that_show_it_exist(self, row: list[str]) -> None:
        assert shown_by(row[-1])
        assert len(shown_by(row[-1])) == row[-1].count("test_") // 2
        for path, test in shown_by(row[-1]):
            assert test in cases_of(ROOT / path), (path, test)

    def test_what_strict_restores_is_shown_by_a_test_of_it(self, row: list[str]) -> None:
        if not row[3].startswith("As without"):
            assert any(path in STRICT for path, _ in shown_by(row[-1]))


@pytest.mark.parametrize("path", STRICT)
def test_every_test_of_strict_compatibility_stands_on_the_page(path: str) -> None:
    assert cases_of(ROOT / path)
    assert cases_of(ROOT / path) <= {test for file, test in shown_by(PAGE.read_text()) if file == path}


def test_every_table_was_read() -> None:
    assert len(rows()) > 30


def test_each_difference_from_katalyst_is_shown_by_tests_that_exist() -> None:
    rows = [line for line in KATALYST.read_text().partition("## Where it differs")[2].splitlines() if "](" in line]
    assert len(rows) > 10
    for row in rows:
        assert shown_by(row), row
        for path, test in shown_by(row):
            assert test in {name.rpartition("::")[2] for name in cases_of(ROOT / path)}, (path, test)
