"""The table in bpf/README.md is what the results say, of exactly the programs that are in the objects."""

from __future__ import annotations

import pytest
from click import ClickException

from koordebpf.kernel.node_files.strategy_files import PARTS
from koordebpf.policy.strategies import STRATEGIES
from tests.vm import strategies, table
from tests.vm.matrix import MATRIX
from tests.vm.programs import programs


def test_its_programs_are_those_of_the_objects():
    names = [program.name for program in programs()]
    assert len(names) == len(set(names))
    assert set(names) == set(table.FACTS), "a program is new or gone: tests/vm/table.py FACTS says what of it is shown"


def test_it_is_made_from_the_results():
    text = table.README.read_text()
    made = table.insert(text, table.render(table.load(), programs()))
    assert made == text, "make it again: python -m tests.vm.table"


def test_the_strategies_table_is_made_from_the_results():
    text = table.OF_STRATEGIES.read_text()
    made = table.insert(text, table.render_strategies(table.load()))
    assert made == text, "make it again: python -m tests.vm.table"
    assert "?" not in made.partition("| strategy |")[2], (
        "a part is new: run make test-kernels, then tests.vm.table --take"
    )


def test_the_parts_are_of_strategies_that_there_are():
    assert {part.gate for part in PARTS} <= {each.gate for each in STRATEGIES}
    assert len({strategies.name_of(part) for part in PARTS}) == len(PARTS)


def test_every_machine_ran_all_of_its_tests_and_tried_every_program():
    results = table.load()
    again = "run it again: make test-kernels, then python -m tests.vm.table --take"
    assert list(results.machines) == [variant.folder for variant in MATRIX], again
    assert all(machine.passed for machine in results.machines.values()), again
    names = {program.name for program in programs()}
    for states in (results.live_programs, *(machine.programs for machine in results.machines.values())):
        assert set(states) == names, again


@pytest.mark.parametrize(
    ("state", "shown"),
    [("refused: EPERM", "refused: EPERM"), ("kprobe", "kprobe"), ("BTF tracepoint", "BTF"), (None, "?")],
)
def test_what_a_kernel_says_is_shown(state, shown):
    results = table.load()
    some = programs()[0]
    made = table.Results("6.18.1", {some.name: state} if state else {}, results.costs, {})
    row = next(line for line in table.render(made, (some,)).splitlines() if some.source in line)
    assert row.split(" | ")[-1] == f"{shown} |"


def test_a_readme_without_the_marks_is_not_written():
    with pytest.raises(ClickException, match="must have the two marks"):
        table.insert("# BPF programs\n", "| a |\n")
