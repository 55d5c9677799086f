"""The defences that SECURITY.md names, and what each would be without: a row of its table notices, or it tests nothing.

A defence is a symbol: `kernel.cgroup.kill.Kill._signal` is a function of the package, `bpf/deadman.bpf.c:fire` one in
C, `deploy/…/policies.yaml:koordebpf-events` an object of a manifest, and a file of `deploy/` stands for itself.
`tests/defences.txt` has, by the folder whose tests notice, what is taken out of each: a text that the symbol has once.
A copy of the checkout without it must fail one of the tests that the row names, and the same test must pass with it.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests import needs
from tests.mutant import ROOT, Mutant
from tests.mutate import copied, ended, mutated
from tests.rules.pages import named_tests, rows

PAGE = ROOT / "SECURITY.md"
FILE = Path(__file__).with_name("defences.txt")
# Folder with a module of mutants → the folders whose tests it runs.
FOLDERS = {
    "unit": (*needs.PURE, "contract", "rules"),
    "deploy": ("deploy",),
    "host": ("host",),
    "cluster": ("cluster",),
}
_SYMBOL = re.compile(r"`((?:[A-Za-z_]\w*\.)+\w+|(?:bpf|deploy)/[\w./-]+(?::[\w-]+)?)`")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\[.*?\]|\S+)(?: - |$)", re.MULTILINE)
_LIVE = ("host", "cluster")
_TEST_S, _TESTS_S = 120, 900  # one test, all of a run


@dataclass(frozen=True)
class Row:
    """A row of the table: where it is, the attack, the symbols of what defends, and the tests."""

    at: str
    attack: str
    symbols: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Removal:
    """What is taken out of a defence, the folder whose tests notice, and of which rows: of those with these words."""

    folder: str
    symbol: str
    attack: str
    old: str
    new: str


def table() -> list[Row]:
    """Return the rows of what is defended."""
    return [
        Row(
            row.at,
            row.cells[1],
            tuple(_SYMBOL.findall(row.cells[3])),
            tuple(f"{file}::{name}" for file, name in named_tests(row.cells[4])),
        )
        for row in rows(PAGE, "\n## What is defended\n")
    ]


def removals() -> list[Removal]:
    """Return what tests/defences.txt holds."""
    found, folder = list[Removal](), ""
    for line in FILE.read_text().splitlines():
        if line.startswith("["):
            folder = line.strip("[]")
        elif line and not line.startswith("#"):
            what, _, change = line.partition(": ")
            symbol, _, attack = what.removesuffix("]").partition(" [")
            old, _, new = change.partition(" ->")
            found.append(Removal(folder, symbol, attack, old, new.removeprefix(" ")))
    return found


def cases(folder: str) -> list[tuple[Removal, Row]]:
    """Return what the module of a folder tries: each removal with each row that names its symbol."""
    return [
        (removal, row)
        for removal in removals()
        for row in table()
        if removal.folder == folder and removal.symbol in row.symbols and removal.attack in row.attack
    ]


def params(folder: str) -> list[object]:
    """Return the same for pytest, with the attack's first words in the name."""
    return [
        pytest.param(removal, row, id=f"{removal.symbol}-{at}-{'-'.join(re.findall(r'[A-Za-z]+', row.attack)[:5])}")
        for at, (removal, row) in enumerate(cases(folder))
    ]


def tests_of(row: Row, folder: str) -> list[str]:
    """Return the tests of a row that a module in this folder runs."""
    return [test for test in row.tests if test.split("/")[1] in FOLDERS[folder]]


def mutant_of(removal: Removal) -> Mutant:
    """Return the file without the defence.

    Raises:  ValueError: there is no such symbol, or it does not have the text exactly once.
    """
    path, first, last = place_of(removal.symbol)
    lines = (ROOT / path).read_text().splitlines(keepends=True)
    part = "".join(lines[first:last])
    if (count := part.count(removal.old)) != 1:
        raise ValueError(f"{removal.symbol} has {removal.old!r} {count} times: it must have it once")
    source = "".join([*lines[:first], part.replace(removal.old, removal.new), *lines[last:]])
    return Mutant(path, removal.symbol, first + 1, removal.old, removal.new, source)


def place_of(symbol: str) -> tuple[str, int, int]:
    """Return the file of a symbol, its first line from 0, and the line after it.

    Raises:  ValueError: there is none.
    """
    path, _, name = symbol.partition(":")
    if "/" not in path:
        return _of_package(symbol)
    if not (ROOT / path).is_file():
        raise ValueError(f"{symbol}: there is no such file")
    lines = (ROOT / path).read_text().splitlines()
    if not name:
        return path, 0, len(lines)
    found = [part for part in _parts(path, lines) if _bears(lines[slice(*part)], path, name)]
    if len(found) != 1:
        raise ValueError(f"{symbol}: {path} has it {len(found)} times")
    return path, *found[0]


def _of_package(symbol: str) -> tuple[str, int, int]:
    words = symbol.split(".")
    for at in range(len(words) - 1, 0, -1):
        path = Path("koordebpf", *words[:at]).with_suffix(".py")
        if (ROOT / path).is_file():
            node: ast.AST | None = ast.parse((ROOT / path).read_bytes())
            for name in words[at:]:
                node = next((each for each in ast.iter_child_nodes(node) if getattr(each, "name", "") == name), None)
                if node is None:
                    raise ValueError(f"{symbol}: {path} has no {name}")
            assert isinstance(node, ast.FunctionDef | ast.ClassDef)
            return path.as_posix(), node.lineno - 1, node.end_lineno or node.lineno
    raise ValueError(f"{symbol}: the package has no such module")


# Functions in C end with a brace in the first column, objects of a manifest with three hyphens.
def _parts(path: str, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    first, end = 0, "}" if path.endswith(".c") else "---"
    for at, line in enumerate(lines):
        if line == end:
            yield first, at + 1
            first = at + 1
    yield first, len(lines)


def _bears(lines: Sequence[str], path: str, name: str) -> bool:
    if path.endswith(".c"):
        opened = next((at for at, line in enumerate(lines) if line == "{"), None)
        return opened is not None and any(
            re.match(rf"\w.*\b{re.escape(name)}\(", line) for line in lines[max(opened - 3, 0) : opened]
        )
    return f"  name: {name}" in lines and "kind: ValidatingAdmissionPolicy" in lines


def noticed(removal: Removal, row: Row, copy: Path) -> str:
    """Return the test of a row that fails without the defence; fail where none does."""
    mutant = mutant_of(removal)
    with _without(mutant, copy):
        # What fails once because the machine was busy has noticed nothing.
        failed = _first_failed(tests_of(row, removal.folder), copy, again=removal.folder in _LIVE)
    assert failed, f"{row.at}: no test of the row notices {removal.symbol} without {removal.old!r}"
    return failed


def assert_pass(tests: Sequence[str], copy: Path) -> None:
    """Fail where one of these fails with every defence, too."""
    failed = _first_failed(tests, copy, again=True) if tests else None
    assert failed is None, f"{failed} fails with every defence, too, and notices nothing"


@contextlib.contextmanager
def _without(mutant: Mutant, copy: Path) -> Iterator[None]:
    try:
        with mutated(mutant, copy):
            _build(mutant, copy)
            yield
    finally:
        _build(mutant, copy)


# What is compiled is compiled again.
def _build(mutant: Mutant, copy: Path) -> None:
    source = copy / mutant.path
    if source.suffix == ".c":
        os.utime(source)
        built = f"build/{source.name.removesuffix('.c')}.o"
        subprocess.run(["make", "-s", "-C", source.parent, built], check=True)


def _first_failed(tests: Sequence[str], copy: Path, *, again: bool) -> str | None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--timeout={_TEST_S}", "-rfE"]
    command += ["--reruns=1"] if again else []
    answer = ended([*command, *tests], copy, _TESTS_S)
    assert answer is not None, f"the tests do not end: {tests}"
    code, output = answer
    assert code in (0, 1), f"pytest ended with {code}:\n{output}"
    if code == 0:
        return None
    found = _FAILED.search(output)
    assert found, output
    return found[1]


class Defences:
    """The tests of a folder: each of its removals with each row that it is of. The module has a class of this kind."""

    folder: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def copy(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return copied(tmp_path_factory.mktemp("copy"))

    @pytest.fixture(scope="class")
    @classmethod
    def failed(cls) -> set[str]:
        return set()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "removal" in metafunc.fixturenames:
            metafunc.parametrize(("removal", "row"), params(self.folder))

    def test_a_test_notices_that_it_is_gone(self, removal: Removal, row: Row, copy: Path, failed: set[str]) -> None:
        failed.add(noticed(removal, row, copy))

    def test_what_noticed_passes_with_all_of_them(self, copy: Path, failed: set[str]) -> None:
        assert_pass(sorted(failed), copy)
