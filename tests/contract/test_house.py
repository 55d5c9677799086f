"""The house rules that no linter knows, for every module of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "koordebpf").rglob("*.py"))
MAX_LINES = 400
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "handler", "misc"}
# Words that add nothing to a name that they are said of.
_FILLER = {
    "a",
    "an",
    "the",
    "this",
    "that",
    "of",
    "for",
    "to",
    "class",
    "function",
    "method",
    "return",
    "returns",
    "get",
}


def words(text: str) -> set[str]:
    """Split snake_case, CamelCase and prose into lower-case words, without filler."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text.replace("_", " "))
    return set(re.findall(r"[a-z0-9]+", split.lower())) - _FILLER


def only_repeats(name: str, docstring: str) -> bool:
    return words(docstring) <= words(name)


def documented(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [
        node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, kinds) and ast.get_docstring(node)
    ]


def literal_page_sizes(path: Path) -> list[int]:
    # 4096 that is multiplied, divided or called a page, and a shift by 12; a buffer or a bound may well be 4096.
    lines = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.BinOp(left=ast.Constant(value=4096)) | ast.BinOp(right=ast.Constant(value=4096)):
                lines.append(node.lineno)
            case ast.BinOp(left=left, op=ast.LShift() | ast.RShift(), right=ast.Constant(value=12)):
                if not isinstance(left, ast.Constant):
                    lines.append(node.lineno)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=4096)) if "page" in name.lower():
                lines.append(node.lineno)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=4096)) if "page" in name.lower():
                lines.append(node.lineno)
            case ast.keyword(arg=str(name), value=ast.Constant(value=4096)) if "page" in name.lower():
                lines.append(node.value.lineno)
    return sorted(lines)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
class TestModule:
    def test_it_needs_no_table_of_contents(self, path):
        assert len(path.read_text().splitlines()) <= MAX_LINES

    def test_its_name_says_what_it_is(self, path):
        assert not FORBIDDEN_NAMES & {path.stem, path.parent.name}

    def test_it_asks_the_kernel_for_the_page_size(self, path):
        assert literal_page_sizes(path) == []

    def test_its_docstrings_say_more_than_the_names(self, path):
        assert [node.name for node in documented(path) if only_repeats(node.name, ast.get_docstring(node) or "")] == []


@pytest.mark.parametrize(
    ("name", "docstring", "repeats"),
    [
        ("decode_frame", "Decode the frame.", True),
        ("CgroupReader", "A cgroup reader.", True),
        ("decode_frame", "Decode one frame; unknown fields are refused.", False),
    ],
)
def test_a_docstring_that_repeats_is_told_from_one_that_does_not(name, docstring, repeats):
    assert only_repeats(name, docstring) is repeats


def test_a_literal_page_size_is_found(tmp_path):
    path = tmp_path / "reader.py"
    path.write_text('"""4096 in prose."""\nPAGE_BYTES = 4_096\nn * 4096\nbuf = os.read(fd, 4096)\nn >> 12\n')
    assert literal_page_sizes(path) == [2, 3, 5]


def test_every_module_was_looked_at():
    assert len(MODULES) > 30


# Records count pages: user space knows their size, and a kernel of the same sources may have others.
_PAGE_SIZE_IN_C = re.compile(r"\b4096U?L*\b\s*[*/%]|[*/%]\s*4096U?L*\b|(<<|>>)\s*12\b")


@pytest.mark.parametrize("line", ["n * 4096", "4096UL / n", "n % 4096", "pages << 12", "bytes >>12"])
def test_a_literal_page_size_in_c_is_found(line):
    assert _PAGE_SIZE_IN_C.search(line)


def test_no_bpf_source_and_no_load_knows_the_page_size_by_heart():
    sources = [*(ROOT / "bpf").rglob("*.[ch]"), *(ROOT / "tests/workloads").rglob("*.[ch]")]
    assert [
        f"{path.name}: {line.strip()}"
        for path in sources
        for line in path.read_text().splitlines()
        if _PAGE_SIZE_IN_C.search(line)
    ] == []


def test_every_bpf_source_is_under_the_licences_that_the_kernel_accepts():
    sources = sorted((ROOT / "bpf").rglob("*.[ch]"))
    assert sources
    assert [
        path.name for path in sources if "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause" not in path.read_text()
    ] == []
