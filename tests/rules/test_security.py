"""SECURITY.md: every defence leads to a test, every attacker has an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests import defences
from tests.rules.offenders import report
from tests.rules.pages import ROOT, Row, has_test, named_tests, rows

PAGE = ROOT / "SECURITY.md"
ATTACKERS = "TPWHA"
CASES = [case for folder in defences.FOLDERS for case in defences.cases(folder)]
# Without it every process of the machine that runs the test would be signalled.
STAYS = {"bpf/deadman.bpf.c:sweep"}


def section(heading: str) -> list[Row]:
    return rows(PAGE, f"\n## {heading}\n")


def test_every_defence_has_a_test() -> None:
    defended = section("What is defended")
    assert len(defended) >= 20
    report(
        [f"{row.at}: {row.cells[1]}" for row in defended if not named_tests(row.cells[4])],
        "the last cell of these rows must name a test: `tests/FILE.py::test_name`",
    )
    named = [(row, *test) for row in defended for test in named_tests(row.cells[4])]
    report(
        [f"{row.at}: {file}::{name}" for row, file, name in named if not has_test(file, name)],
        "there are no such tests",
    )


def test_every_defence_is_there_and_taken_out_somewhere() -> None:
    taken = {row.at: {each.symbol for each, of in CASES if of == row} for row in defences.table()}
    report(
        [
            f"{row.at}: {row.symbols or row.attack}"
            for row in defences.table()
            if set(row.symbols) - taken[row.at] - STAYS or not row.symbols
        ],
        "the fourth cell must name what defends, and tests/defences.txt what to take out of each",
    )


def test_what_is_taken_out_is_there_and_has_tests_that_may_notice() -> None:
    assert {each.folder for each in defences.removals()} == set(defences.FOLDERS)
    known = {each for each, row in CASES if defences.tests_of(row, each.folder)}
    unknown = [f"{each.symbol}: {each.old}" for each in defences.removals() if each not in known]
    report(unknown, "no row of SECURITY.md with tests of that folder names these of tests/defences.txt")
    report(
        [problem for each in defences.removals() if (problem := problem_of(defences.mutant_of, each))],
        "tests/defences.txt must have what is there",
    )
    report(
        [problem for each in sorted(STAYS) if (problem := problem_of(defences.place_of, each))],
        "it is not there",
    )


def problem_of(made: Callable[[Any], object], of: object) -> str | None:
    try:
        made(of)
    except (ValueError, SyntaxError) as error:
        return str(error)
    return None


def test_every_attacker_is_answered_and_none_is_unknown() -> None:
    assert [row.cells[0] for row in section("Who attacks")] == list(ATTACKERS)
    answers = [*section("What is defended"), *section("What is not defended")]
    unknown = [f"{row.at}: {row.cells[0]}" for row in answers if not set(row.cells[0].split()) <= set(ATTACKERS)]
    report(unknown, f"the first cell of these rows must be of {ATTACKERS}")
    assert {who for row in answers for who in row.cells[0].split()} == set(ATTACKERS)


def test_nothing_is_both() -> None:
    defended = {row.cells[1] for row in section("What is defended")}
    both = [f"{row.at}: {row.cells[1]}" for row in section("What is not defended") if row.cells[1] in defended]
    report(both, "these are in the table of what is defended, too: leave them in one of both")
