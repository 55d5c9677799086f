"""Change the code of pure rooms at random, one place at a time, and see whether a test notices: `make mutate`.

Each mutant is a copy of the package with one comparison, condition, bound, order or operator changed. It runs against
the tests of its room first, then against all that need nothing. `python -m tests.mutate [COUNT] [--seed N]` says how
many tests killed, and lists the survivors; those of tests/mutants.txt are known to change nothing.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = Path(__file__).with_name("mutants.txt")
# Room → the tests that are to notice; then all of `_REST`.
ROOMS = {
    "koordebpf/policy": ("tests/unit/policy", "tests/scenarios"),
    "koordebpf/state": ("tests/unit/state", "tests/scenarios"),
    "koordebpf/slo": ("tests/unit/slo", "tests/unit/state"),
    "koordebpf/attribution": ("tests/unit/attribution", "tests/golden"),
    "koordebpf/policy/guards": ("tests/unit/act", "tests/unit/policy"),
}
_REST = ("tests/unit", "tests/scenarios", "tests/golden", "tests/trees", "tests/properties")
_A_FILE = 3  # at most so many of one file: the large ones would take all
_LEAST_PERCENT = 95
_TIMEOUT_S = 240
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One changed place: the file's new source, and what was there and is there now."""

    path: str
    line: int
    old: str
    new: str
    source: str

    @property
    def key(self) -> str:
        """Return what it is called in the list of those that change nothing; the line's number may change."""
        return f"{self.path}: {self.old} -> {self.new}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    source = path.read_text()
    name = path.relative_to(ROOT).as_posix()
    tree = ast.parse(source)
    # Before Python 3.12 the places of what stands in an f-string are not those of the file.
    in_text = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        for changed in _changes(node) if id(node) not in in_text else ():
            old = ast.get_source_segment(source, node)
            if old is None or "\n" in old or not isinstance(node, ast.expr) or node.end_col_offset is None:
                continue
            lines = source.splitlines(keepends=True)
            text = lines[node.lineno - 1].encode()
            new = ast.unparse(changed)
            whole = text[: node.col_offset] + f"({new})".encode() + text[node.end_col_offset :]
            lines[node.lineno - 1] = whole.decode()
            yield Mutant(name, node.lineno, old, new, "".join(lines))


def _changes(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[op, *more], comparators=comparators) if type(op) in _COMPARISONS:
            yield ast.Compare(left, [_COMPARISONS[type(op)](), *more], comparators)
        case ast.BoolOp(op=op, values=values):
            for at in range(len(values)):
                rest = [value for place, value in enumerate(values) if place != at]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _NAMES:
            yield ast.Call(ast.Name(_NAMES[name]), args, keywords)
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield ast.Constant(value + 1)


def chosen(count: int, seed: int) -> list[Mutant]:
    """Return so many mutants, of each room by its size."""
    chance = random.Random(seed)
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if path.stat().st_size]
    found: list[Mutant] = []
    for path in files:
        of_file = [each for each in mutants_of(path) if each.key not in known()]
        found += chance.sample(of_file, min(_A_FILE, len(of_file)))
    return chance.sample(found, min(count, len(found)))


def known() -> frozenset[str]:
    """Return the keys of the mutants that change nothing a caller can see."""
    lines = KNOWN.read_text().splitlines()
    return frozenset(line.partition("  # ")[0] for line in lines if line and not line.startswith("#"))


def is_killed(mutant: Mutant, copy: Path) -> bool:
    """Tell whether a test fails in a copy of the checkout that has the mutant."""
    path = copy / mutant.path
    before = path.read_text()
    path.write_text(mutant.source)
    room = next(room for room in ROOMS if mutant.path.startswith(f"{room}/"))
    try:
        return any(_fails(copy, folders) for folders in (ROOMS[room], _REST))
    finally:
        path.write_text(before)


def _fails(copy: Path, folders: Sequence[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *folders]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def copied(folder: Path) -> Path:
    """Return a copy of what the tests need."""
    for name in ("koordebpf", "tests", "deploy", "docs", "bpf", "pyproject.toml", "README.md"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
        else:
            shutil.copy(source, folder)
    return folder


def main(arguments: list[str]) -> int:
    """Print each survivor and the share that was killed; return 1 where that is too low."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    mutants, started = chosen(options.count, options.seed), time.monotonic()
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        free = [copied(Path(name) / str(at)) for at in range(os.cpu_count() or 1) if not (Path(name) / str(at)).mkdir()]
        if _fails(free[0], _REST):
            print("the tests fail without any mutant; run: make test")
            return 2

        def judge(mutant: Mutant) -> bool:
            copy = free.pop()
            try:
                return is_killed(mutant, copy)
            finally:
                free.append(copy)

        for at, (mutant, killed) in enumerate(zip(mutants, pool.map(judge, mutants), strict=True), start=1):
            if not killed:
                survivors.append(mutant)
                print(f"{at:3}/{len(mutants)} survives: {mutant.path}:{mutant.line}: {mutant.old} -> {mutant.new}")
    percent = 100 * (len(mutants) - len(survivors)) / max(len(mutants), 1)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} killed, {percent:.0f} %, seed {options.seed}, "
          f"{time.monotonic() - started:.0f} s")  # fmt: skip
    return int(percent < _LEAST_PERCENT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
