"""SECURITY.md: every defence leads to a test, every attacker has an answer."""

from __future__ import annotations

from tests.rules.offenders import report
from tests.rules.pages import ROOT, Row, named_tests, rows

PAGE = ROOT / "SECURITY.md"
ATTACKERS = "TPWHA"


def section(heading: str) -> list[Row]:
    return rows(PAGE, f"\n## {heading}\n")


def test_every_defence_has_a_test() -> None:
    defended = section("What is defended")
    assert len(defended) >= 20
    report(
        [f"{row.at}: {row.cells[1]}" for row in defended if not named_tests(row.cells[3])],
        "the last cell of these rows must name a test: `tests/FILE.py::test_name`",
    )


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
