"""SECURITY.md against the tests that it names: every defence leads to a test, and every test is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", TEXT)))
ATTACKERS = "TPWHA"


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table."""
    text = TEXT.split(f"\n## {section}\n")[1].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines[2:]]


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """Return the tests of a file, those of a class with its name and two colons before them."""
    found = set()
    for one in ast.parse((ROOT / path).read_text()).body:
        below = one.body if isinstance(one, ast.ClassDef) else [one]
        prefix = f"{one.name}::" if isinstance(one, ast.ClassDef) else ""
        found |= {prefix + each.name for each in below if isinstance(each, ast.FunctionDef)}
    return frozenset(name for name in found if name.rpartition(":")[2].startswith("test_"))


@pytest.mark.parametrize(("path", "name"), NAMED, ids=str)
def test_what_it_names_is_there(path: str, name: str) -> None:
    assert name in names_in(path)


def test_every_defence_has_a_test() -> None:
    defended = rows("What is defended")
    assert len(defended) >= 20
    assert [cells[1] for cells in defended if "::" not in cells[3]] == []


def test_every_attacker_is_answered_and_none_is_unknown() -> None:
    known = [cells[0] for cells in rows("Who attacks")]
    assert known == list(ATTACKERS)
    answered = {
        who
        for section in ("What is defended", "What is not defended")
        for cells in rows(section)
        for who in cells[0].split()
    }
    assert answered == set(ATTACKERS)


def test_nothing_is_both() -> None:
    tried = {cells[1] for cells in rows("What is defended")}
    assert tried.isdisjoint(cells[1] for cells in rows("What is not defended"))
