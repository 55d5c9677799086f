"""No host test is skipped everywhere: what this kernel skips a virtual machine runs, and which one is known."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.vm import nowhere as command
from tests.vm import table
from tests.vm.machine import ROOT
from tests.vm.skips import by_module, is_selected, nodes_of, nowhere, renewed, skipped_in
from tests.vm.verdict import TestResult, Verdict, read_tests

TESTS = ROOT / "tests"
ONE, TWO = "tests/host/test_a.py::TestA::test_one", "tests/host/test_a.py::test_two[v2-23]"
OTHER = "tests/host/test_b.py::test_one"
REPORT = """<testsuites><testsuite tests="3">
<testcase classname="tests.host.test_a.TestA" name="test_one" time="1"/>
<testcase classname="tests.host.test_b.TestA" name="test_one" time="1">
<skipped message="not this kind of machine: v1"/></testcase>
<testcase classname="tests.host.test_a" name="test_two[v2-23]" time="0"/>
</testsuite></testsuites>"""


def result(node: str, text: str = "") -> TestResult:
    return TestResult(node, "skipped" if text else "passed", 0.1, text, node=node)


def test_every_host_test_runs_on_this_kernel_or_in_a_machine() -> None:
    results = table.load()
    skipped = nodes_of(results.live_skipped)
    assert skipped, "take what this kernel skips: make test, then python -m tests.vm.table --take"
    assert command.of_results(results, skipped) == [], "give each to a machine in tests/vm/matrix.py"


def test_what_is_known_to_be_skipped_is_a_test_still() -> None:
    # A class may have its tests from another module.
    defined = {name for path in TESTS.rglob("*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    gone = [
        node
        for node in nodes_of(table.load().live_skipped)
        if not (ROOT / node.partition("::")[0]).exists() or name_of(node) not in defined
    ]
    assert gone == [], "take them out of tests/vm/results.json"


def name_of(node: str) -> str:
    return node.partition("[")[0].rpartition("::")[2]


@pytest.mark.parametrize(
    ("arguments", "selected"),
    [
        (["tests/host/test_a.py"], [ONE, TWO]),
        (["tests/host/test_a.py::TestA"], [ONE]),
        (["tests/host/test_a.py::test_two"], [TWO]),
        (["tests/host/test_a.py::test_two[v2-23]"], [TWO]),
        (["tests/host/test_a.py::test_tw"], []),
        (["tests/host/test_a.py", "tests/host/test_b.py", "--deselect=tests/host/test_a.py::TestA::"], [TWO, OTHER]),
        (["--deselect=tests/host/test_b.py"], []),
    ],
)
def test_a_machine_runs_what_pytest_would_choose(arguments: list[str], selected: list[str]) -> None:
    assert [node for node in (ONE, TWO, OTHER) if is_selected(node, arguments)] == selected


def test_what_no_machine_runs_is_named() -> None:
    machines = {"first": ["tests/host/test_a.py"], "second": ["tests/host/test_a.py::test_two"]}
    assert nowhere([ONE, TWO, OTHER], machines, {}) == [OTHER]
    # What the one machine skips the other runs.
    assert nowhere([TWO], machines, {"first": {TWO}}) == []
    assert nowhere([ONE, TWO], machines, {"first": {ONE, TWO}, "second": {TWO}}) == [ONE, TWO]


def test_a_skip_is_kept_by_module_and_comes_back() -> None:
    kept = by_module([TWO, OTHER, ONE])
    assert kept == {
        "tests/host/test_a.py": ["TestA::test_one", "test_two[v2-23]"],
        "tests/host/test_b.py": ["test_one"],
    }
    assert nodes_of(kept) == [ONE, TWO, OTHER]


def test_a_report_renews_what_it_names_and_no_more() -> None:
    before = by_module([ONE, TWO])
    assert nodes_of(renewed(before, [result(ONE), result(OTHER, "not this kind of machine")])) == [TWO, OTHER]


def test_tests_of_one_name_in_two_modules_are_two(tmp_path: Path) -> None:
    report = tmp_path / "host.xml"
    report.write_text(REPORT)
    tests = read_tests(report)
    assert [test.node for test in tests] == [ONE, "tests/host/test_b.py::TestA::test_one", TWO]
    assert skipped_in(tests) == ["tests/host/test_b.py::TestA::test_one"]


def test_a_run_of_everything_is_judged_by_its_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host.xml").write_text(REPORT)
    machines = [variant.folder for variant in table.MATRIX if "tests/host/test_kill.py" in variant.tests]
    monkeypatch.setattr(command, "FOUND", tmp_path)
    for variant in table.MATRIX:
        (tmp_path / variant.folder).mkdir()
        tests = (TestResult("test_one", "passed", 0.1, node="tests/host/test_b.py::TestA::test_one"),)
        (tmp_path / variant.folder / "verdict.json").write_bytes(msgspec.json.encode(Verdict(tests, ())))
    assert machines
    assert command.of_run(tmp_path / "host.xml") == ["tests/host/test_b.py::TestA::test_one"], (
        "no machine has that file"
    )
    (tmp_path / "host.xml").write_text(REPORT.replace("test_b", "test_kill").replace("TestA", "TestKill"))
    assert command.of_run(tmp_path / "host.xml") == []
    skipped = (TestResult("test_one", "skipped", 0.1, node="tests/host/test_kill.py::TestKill::test_one"),)
    for name in machines:
        (tmp_path / name / "verdict.json").write_bytes(msgspec.json.encode(Verdict(skipped, ())))
    assert command.of_run(tmp_path / "host.xml") == ["tests/host/test_kill.py::TestKill::test_one"]
    for name in machines:
        (tmp_path / name / "verdict.json").unlink()
    assert command.of_run(tmp_path / "host.xml") == ["tests/host/test_kill.py::TestKill::test_one"], "they did not run"
