"""What rules read in pages: tables with their lines, and the tests that are named, with those that there are."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# All files of the checkout that people write.
FILES = [
    str(path.relative_to(ROOT))
    for top in ROOT.iterdir()
    if not top.name.startswith(".")
    for path in (top.rglob("*") if top.is_dir() else [top])
    if path.is_file() and not {"build", "dist", "__pycache__"} & set(path.parts)
]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / name / "README.md" for name in ("bpf", "tests")),
        *(path for room in ("deploy", "docs", "vagrant", "koordebpf") for path in (ROOT / room).rglob("*.md")),
    ]
)
# The title of a link has the test, whose name is too long to show.
_LINKED = re.compile(r'\]\((?:\.\./)*(tests/[\w/]+\.py) "([\w:]+)"\)')
_WRITTEN = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


class Row(msgspec.Struct, frozen=True):
    """A row of a table: where it is, and its cells."""

    at: str
    text: str
    cells: list[str]


def name_of(path: Path) -> str:
    """Return a path as reports write it."""
    return path.relative_to(ROOT).as_posix()


def rows(path: Path, after: str = "", before: str = "\n## ") -> list[Row]:
    """Return the rows of all tables, without their heads; of what follows `after` up to `before` where it is given."""
    text = path.read_text()
    start = text.index(after) + len(after) if after else 0
    end = text.find(before, start) if after else -1
    first = text.count("\n", 0, start) + 1
    found: list[Row] = []
    for number, line in enumerate(text[start : end if end >= 0 else None].splitlines(), first):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if set("".join(cells)) <= set("-: "):
            found.pop()  # the head
        else:
            found.append(Row(f"{name_of(path)}:{number}", line, cells))
    return found


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return file and name of each test that a text names."""
    return _LINKED.findall(text) + _WRITTEN.findall(text)


@functools.cache
def cases_of(file: str) -> frozenset[str]:
    """Return the tests of a file, those of a class with its name and two colons before them; none: it is not there."""
    path = ROOT / file
    return frozenset(_tests(ast.parse(path.read_bytes()))) if path.is_file() else frozenset()


def _tests(tree: ast.Module) -> Iterator[str]:
    for each in tree.body:
        below = each.body if isinstance(each, ast.ClassDef) else [each]
        prefix = f"{each.name}::" if isinstance(each, ast.ClassDef) else ""
        for one in below:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                yield prefix + one.name


def has_test(file: str, name: str) -> bool:
    """Tell whether a file has a test or a class of tests of this name; a class may stand before it."""
    return any(name in (each, *each.split("::")) for each in cases_of(file)) or name in _classes(file)


@functools.cache
def _classes(file: str) -> frozenset[str]:
    path = ROOT / file
    body = ast.parse(path.read_bytes()).body if path.is_file() else []
    return frozenset(each.name for each in body if isinstance(each, ast.ClassDef) and each.name.startswith("Test"))
