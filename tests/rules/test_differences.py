"""Pages that say where koordebpf differs from another project: each row is whole, and shown by tests that exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.offenders import report
from tests.rules.pages import DOCS, PAGES, ROOT, Row, cases_of, has_test, name_of, named_tests, rows

KOORDINATOR = ROOT / "deploy" / "koordinator.md"
STRICT = ("tests/scenarios/test_strict_compat.py", "tests/scenarios/test_strict_cpu_compat.py")
COLUMNS = ["documented", "the original", "koordebpf", "`compat: strict`", "shown by"]
# Page → its heading, and how many rows there are at least.
DIFFERENCES = {
    DOCS / "katalyst.md": ("## Where it differs", 11),
    DOCS / "colocation/batch-resources.md": ("## Where it differs", 8),
    DOCS / "colocation/prediction.md": ("## Where it differs", 11),
}


def unknown_tests(text: str, path: Path) -> Iterator[str]:
    """Yield each test that a page names and that is not there."""
    for number, line in enumerate(text.splitlines(), 1):
        for file, name in named_tests(line):
            if not has_test(file, name):
                yield f"{name_of(path)}:{number}: {file} has no {name}"


def untested(found: list[Row]) -> Iterator[str]:
    """Yield each row that names no test, or that links to a file of tests without naming one."""
    for row in found:
        if not named_tests(row.cells[-1]) or len(named_tests(row.cells[-1])) != row.cells[-1].count("/tests/"):
            yield f"{row.at}: {row.cells[0] or row.cells[1]}"


def test_every_test_that_a_page_names_exists() -> None:
    assert sum(len(named_tests(path.read_text())) for path in PAGES) > 300
    wrong = (each for path in PAGES for each in unknown_tests(path.read_text(), path))
    report(wrong, "these pages name tests that are not there: write the names that they have now")


def broken_rows(found: list[Row]) -> Iterator[str]:
    """Yield what is wrong with rows of the page on Koordinator."""
    for row in found:
        if len(row.cells) != len(COLUMNS) or not all(row.cells[1:]):
            yield f"{row.at}: must have these cells, each with a text: {', '.join(COLUMNS)}"
        elif not row.cells[3].startswith("As without") and not any(
            file in STRICT for file, _ in named_tests(row.cells[-1])
        ):
            yield f"{row.at}: what `compat: strict` restores must be shown by a test of {' or '.join(STRICT)}"


def test_each_difference_from_koordinator_is_shown() -> None:
    found = rows(KOORDINATOR)
    assert len(found) > 30
    report(
        [*broken_rows(found), *(f"{each}: names no test" for each in untested(found))],
        'each row must be whole, and its last cell link to tests: [text](../tests/FILE.py "test_name")',
    )


def test_every_test_of_strict_compatibility_is_on_its_page() -> None:
    shown = set(named_tests(KOORDINATOR.read_text()))
    assert all(map(cases_of, STRICT))
    missing = [f"{file}: {name}" for file in STRICT for name in sorted(cases_of(file)) if (file, name) not in shown]
    report(missing, f"these must be linked to in a row of {name_of(KOORDINATOR)}")


@pytest.mark.parametrize("path", DIFFERENCES, ids=name_of)
def test_each_difference_of_a_page_is_shown(path: Path) -> None:
    heading, least = DIFFERENCES[path]
    found = [row for row in rows(path, heading) if "](" in row.text]
    assert len(found) >= least
    report(untested(found), 'the last cell of these rows must link to tests: [text](../tests/FILE.py "test_name")')


def test_a_row_without_a_test_and_a_test_that_is_gone_are_found() -> None:
    here = "tests/rules/test_differences.py"
    good, gone = f'[a](../{here} "test_every_test_that_a_page_names_exists")', f'[a](../{here} "test_none")'
    some = [Row("p:1", "", ["a", good]), Row("p:2", "", ["b", "none"]), Row("p:3", "", ["c", f"{good} [b](../{here})"])]
    assert list(untested(some)) == ["p:2: b", "p:3: c"]
    text = f"{good}\n{gone} `{here}::test_gone` `tests/none.py::test_a`"
    assert [each.partition(": ")[2] for each in unknown_tests(text, KOORDINATOR)] == [
        f"{here} has no test_none", f"{here} has no test_gone", "tests/none.py has no test_a",
    ]  # fmt: skip
    cells = ["", "a", "b", "It does.", good]
    assert [each.partition(":")[0] for each in broken_rows([Row("p", "", cells[:4]), Row("q", "", cells)])] == [
        "p",
        "q",
    ]
    assert list(broken_rows([Row("p", "", ["", "a", "b", "As without.", good])])) == []
