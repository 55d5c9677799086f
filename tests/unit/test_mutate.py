"""What is mutated, and what counts as killed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import imports, mutant, mutate

MODULES = [path for path in imports.sources() if path.startswith("koordebpf/")]


def test_every_room_of_the_package_has_mutants() -> None:
    found = mutate.chosen(40, 1, MODULES)
    assert {mutate.room_of(each.path) for each in found} == {mutate.room_of(path) for path in MODULES}
    assert len(set(found)) == len(found)


def test_the_same_seed_gives_the_same_mutants() -> None:
    rooms = [path for path in MODULES if mutate.room_of(path) in {"state", "store"}]
    assert mutate.chosen(9, 7, rooms) == mutate.chosen(9, 7, rooms) != mutate.chosen(9, 8, rooms)


def test_a_mutant_differs_in_one_line() -> None:
    path = mutant.ROOT / "koordebpf/units.py"
    for each in mutant.mutants_of(path):
        before, after = path.read_text().splitlines(), each.source.splitlines()
        assert [at for at, lines in enumerate(zip(before, after, strict=True), start=1) if len(set(lines)) > 1] == [
            each.line
        ]


def test_a_mutant_has_the_name_of_its_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        "A = 0\nclass Of:\n    def one(self):\n        return 0\n    def two(self):\n        return 20_000\n"
    )
    monkeypatch.setattr(mutant, "ROOT", tmp_path)
    keys = ["one.py: 0 -> 1", "one.py Of.one: 0 -> 1", "one.py Of.two: 20_000 -> 40000"]
    assert sorted(each.key for each in mutant.mutants_of(path)) == sorted(keys)


def test_a_type_has_no_mutant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.py"
    path.write_text("def one(version: Literal[1, 2]) -> list[int]:\n    return known[3]\n")
    monkeypatch.setattr(mutant, "ROOT", tmp_path)
    assert [each.key for each in mutant.mutants_of(path)] == ["one.py one: 3 -> 4"]


def test_what_is_known_to_change_nothing_is_a_mutant_still() -> None:
    paths = {key.partition(".py")[0] + ".py" for key in mutate.known()}
    made = {each.key for path in paths for each in mutant.mutants_of(mutant.ROOT / path)}
    assert sorted(mutate.known() - made) == [], "take them out of tests/mutants.txt"


def test_what_hangs_is_neither_killed_nor_survived() -> None:
    assert mutate.percent(Counter(killed=8, survived=2, hangs=10)) == 80


@pytest.mark.parametrize(
    ("rooms", "is_good"),
    [
        ({"act": Counter(killed=10), "kube": Counter(killed=8, survived=2)}, True),
        ({"act": Counter(killed=90), "kube": Counter(killed=7, survived=3)}, False),
        ({"act": Counter(killed=8, survived=2), "kube": Counter(killed=8, survived=2)}, False),
    ],
)
def test_each_room_and_all_of_them_have_a_least_share(rooms: dict[str, Counter[str]], is_good: bool) -> None:
    assert mutate.is_good(rooms) is is_good


def test_the_nearest_tests_run_first_and_contract_last() -> None:
    graph = imports.graph(
        {
            "koordebpf/one.py": "",
            "koordebpf/two.py": "from koordebpf import one",
            "tests/unit/test_one.py": "from koordebpf import one",
            "tests/contract/test_one.py": "from koordebpf import one",
            "tests/unit/test_two.py": "from koordebpf import two",
            "tests/host/test_one.py": "from koordebpf import one",
        }
    )
    assert mutate.Tests(graph, ["koordebpf/one.py"]).stages("koordebpf/one.py") == [
        ["tests/unit/test_one.py"],
        ["tests/contract/test_one.py"],
        ["tests/unit/test_two.py"],
    ]


@pytest.mark.slow  # each starts pytest
class TestJudged:
    TESTS = "from koordebpf.one import reached\n\ndef test() -> None:\n    assert reached(1)\n"

    def judged(self, copy: Path, changed: str) -> str:
        (copy / "koordebpf").mkdir()
        (copy / "tests/unit").mkdir(parents=True)
        (copy / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n')
        (copy / "koordebpf/__init__.py").write_text("")
        before = "def reached(value: int) -> bool:\n    return value > 0\n"
        (copy / "koordebpf/one.py").write_text(before)
        (copy / "tests/unit/test_one.py").write_text(self.TESTS)
        sources = {path: (copy / path).read_text() for path in ("koordebpf/one.py", "tests/unit/test_one.py")}
        tests = mutate.Tests(imports.graph(sources), ["koordebpf/one.py"])
        tests.test_s = 2
        one = mutant.Mutant("koordebpf/one.py", "", 2, "value > 0", changed, before.replace("value > 0", changed))
        result = mutate.judged(one, copy, tests)
        assert (copy / "koordebpf/one.py").read_text() == before
        return result

    def test_a_test_that_fails_kills(self, tmp_path: Path) -> None:
        assert self.judged(tmp_path, "value > 1") == mutate.KILLED

    def test_one_that_no_test_notices_survives(self, tmp_path: Path) -> None:
        assert self.judged(tmp_path, "value >= 0") == mutate.SURVIVED

    def test_one_that_does_not_end_is_a_timeout_and_no_kill(self, tmp_path: Path) -> None:
        assert self.judged(tmp_path, "[0 for _ in iter(int, 1)]") == mutate.TIMEOUT


@pytest.mark.slow  # it starts pytest
def test_what_survives_runs_against_the_live_kernels_tests_that_pass_without_it(tmp_path: Path) -> None:
    (tmp_path / "koordebpf").mkdir()
    (tmp_path / "tests/host").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n')
    (tmp_path / "tests/again.txt").write_text("--reruns=0\n")
    (tmp_path / "koordebpf/__init__.py").write_text("")
    before = "def reached(value: int) -> bool:\n    return value > 0\n"
    (tmp_path / "koordebpf/one.py").write_text(before)
    program = (
        "import subprocess, sys\n\ndef test() -> None:\n    program = 'from koordebpf.one import reached; exit(%s)'\n"
    )
    program += "    assert subprocess.run([sys.executable, '-c', program]).returncode == 0\n"
    (tmp_path / "tests/host/test_one.py").write_text(program % "not reached(1)")
    (tmp_path / "tests/host/test_two.py").write_text(program % "1")
    live = mutate.LiveTests(tmp_path)
    assert (live.modules, live.failed) == (["tests/host/test_one.py"], ["tests/host/test_two.py"])
    for changed, is_killed in (("value > 1", True), ("value >= 0", False)):
        one = mutant.Mutant("koordebpf/one.py", "", 2, "value > 0", changed, before.replace("value > 0", changed))
        assert live.kills(one, tmp_path) is is_killed
    assert (tmp_path / "koordebpf/one.py").read_text() == before


def test_an_unknown_room_is_refused_with_those_there_are() -> None:
    command = [sys.executable, "-m", "tests.mutate", "--room", "cellar"]
    done = subprocess.run(command, cwd=mutant.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "no room cellar; there are: act," in done.stderr) == (2, True)
