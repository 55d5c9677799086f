"""The table in bpf/README.md is what the results say, of exactly the programs that are in the objects."""

from __future__ import annotations

import pytest
from click import ClickException

from koordebpf.decision.strategies import KERNEL_FILES
from tests.rules.offenders import report
from tests.rules.pages import ROOT, has_test
from tests.vm import kills, strategies, table
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
    assert "| ? |" not in made, "a part is new: run make test-kernels, then tests.vm.table --take"


def test_no_two_parts_of_strategies_have_one_name():
    assert len({strategies.name_of(gate, part) for gate, part in KERNEL_FILES}) == len(KERNEL_FILES)


def test_what_kills_use_is_in_a_table_of_its_own():
    made = table.render_strategies(table.load())
    head, _, *lines = made.partition("\n\n")[2].splitlines()
    assert head.startswith("| kill | by | since | how the agent finds out | ")
    assert [line.split(" | ")[0] for line in lines] == [f"| {part.does}" for part in kills.PARTS]
    columns = [each.strip() for each in head.strip("|").split("|")]
    by_name = {line.split(" | ")[1]: dict(zip(columns, line.strip("| ").split(" | "), strict=True)) for line in lines}
    # What the releases say: v5.14, v5.15, v6.13.
    assert (by_name["`cgroup.kill`"]["5.10 v2"], by_name["`cgroup.kill`"]["6.1 v2"]) == ("–", "✓")
    assert (by_name["`process_mrelease`"]["5.10 v2"], by_name["`process_mrelease`"]["6.1 v2"]) == ("–", "✓")
    switch = by_name["`bpf_send_signal_task`"]
    assert (switch["6.12 v2"], switch["7.2 v2"]) == ("–", "✓")


def test_every_machine_ran_all_of_its_tests_and_tried_every_program():
    results = table.load()
    again = "run it again: make test-kernels, then python -m tests.vm.table --take"
    assert list(results.machines) == [variant.folder for variant in MATRIX], again
    assert all(machine.passed for machine in results.machines.values()), again
    names = {program.name for program in programs()}
    for states in (results.live_programs, *(machine.programs for machine in results.machines.values())):
        assert set(states) == names, again


def test_tests_of_every_machine_exist():
    missing = []
    for variant in MATRIX:
        assert variant.tests, variant.title
        named = [each.removeprefix("--deselect=").partition("::") for each in variant.tests]
        missing += [
            f"tests/vm/matrix.py: {variant.title}: {file}{separator}{name}"
            for file, separator, name in named
            if not (ROOT / file).exists() or (name and not has_test(file, name.partition("[")[0].removesuffix("::")))
        ]
    report(missing, "machines choose these tests, which are not there")


def test_what_a_kernel_says_is_shown():
    results, some = table.load(), programs()[0]
    for state, shown in (
        ("refused: EPERM", "refused: EPERM"),
        ("kprobe", "kprobe"),
        ("BTF tracepoint", "BTF"),
        (None, "?"),
    ):
        made = table.Results("6.18.1", {some.name: state} if state else {}, results.costs, {})
        row = next(line for line in table.render(made, (some,)).splitlines() if some.source in line)
        assert row.split(" | ")[-1] == f"{shown} |"


def test_a_readme_without_the_marks_is_not_written():
    with pytest.raises(ClickException, match="must have the two marks"):
        table.insert("# BPF programs\n", "| a |\n")
