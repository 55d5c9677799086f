"""docs/node.md lists every test that runs on a node in a guest, in the words that the run prints."""

from __future__ import annotations

from pathlib import Path

from tests.node.proved import TOPICS, Proved, declared, gathered, sentence, table

_PAGE = Path(__file__).parents[2] / "docs" / "node.md"


def test_the_page_has_a_row_for_each_test() -> None:
    rows = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in _PAGE.read_text().splitlines()]
    assert len(declared()) > 25
    missing = [each for each in declared() if (TOPICS[each.module], sentence(each.name)) not in rows]
    assert missing == []


def test_every_file_of_tests_has_a_topic() -> None:
    files = {path.stem for path in (_PAGE.parents[1] / "tests" / "node").glob("test_*.py")}
    assert files == set(TOPICS)


def test_only_what_passed_is_printed_with_its_figures() -> None:
    name = "tests/node/test_suppress.py::test_systemd_undoes_nothing_and_is_not_fought"
    found = gathered([(f"{name}[one]", {"figure": "3 times"}), (f"{name}[two]", {})])
    assert found == [Proved("test_suppress", name.rpartition(":")[2], 2, ("3 times",))]
    assert table(found).splitlines()[2:] == [
        "| suppression in systemd's slices | systemd undoes nothing and is not fought | 3 times |"
    ]
