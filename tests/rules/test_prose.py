"""Docstrings, comments and pages name modules and files that exist: a name that a move left behind fails here."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from koordebpf.decision.strategies import STRATEGIES, section_of
from tests.rules.offenders import report
from tests.rules.pages import FILES, ROOT

ROOMS = {path.name for path in (ROOT / "koordebpf").iterdir() if (path / "__init__.py").exists()}
_ENDS = {file.split("/", depth)[-1] for file in FILES for depth in range(file.count("/") + 1)}
TOP = {Path(file).parts[0] for file in FILES}
_PAGES = {".md", ".yaml", ".toml", ".sh", ".c", ".h", ".txt"}
_FILE = re.compile(r"(?<![\w/.<$-])((?:[\w-]+/)+[\w.-]+\.(?:py|sh|md|yaml|json|bpf\.c))(?![\w/])")
_MODULE = re.compile(rf"(?<![\w/.-])((?:koordebpf|{'|'.join(sorted(ROOMS))})(?:\.[A-Za-z_]\w*+)++)(?![\w/])")
# What looks like a module and is none.
NO_MODULES = {
    "kernel.bpf_stats_enabled": "a sysctl",
    "koordebpf.io": "the domain of our labels",
    "report.listen": "a key of the configuration file",
    "slo.koordinator.sh": "an API group",
    **{path: "a section of the configuration file" for each in STRATEGIES if (path := section_of(each))},
}
_EXAMPLES = {"tests/golden", "tests/rules/test_prose.py"}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what people read in a file: with Python its docstrings and comments; and the line where each begins."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield node.body[0].lineno, docstring


def has_file(name: str, folder: Path) -> bool:
    """Tell whether a path names a file of ours, from the root, a folder of it, or the folder of who names it."""
    return name in _ENDS or (folder / name).exists()


@functools.cache
def has_module(name: str) -> bool:
    """Tell whether a dotted name is a package, a module, or a name that its file has."""
    at = ROOT / "koordebpf"
    rest = name.removeprefix("koordebpf.").split(".")
    while rest and (at / rest[0]).is_dir():
        at /= rest.pop(0)
    is_module = bool(rest) and (at / f"{rest[0]}.py").exists()
    source = at / (f"{rest.pop(0)}.py" if is_module else "__init__.py")
    return not rest or re.search(rf"\b{rest[0]}\b", source.read_text()) is not None


def stale(text: str, path: Path) -> list[str]:
    """Return the files and modules that a text names and that are not there; in pages a.b may be a setting."""
    files = [name for name in _FILE.findall(text) if name.split("/")[0] in ROOMS | TOP]
    modules = [] if path.suffix not in {".py", ".c", ".h"} else _MODULE.findall(text)
    return [name for name in files if not has_file(name, path.parent)] + [
        name for name in modules if name not in NO_MODULES and not has_module(name)
    ]


def test_a_stale_name_is_found() -> None:
    for text, found in (
        ("why: as for evictions (act/evicting.py)", ["act/evicting.py"]),
        ("`kube.evicting.Evicting` has it", ["kube.evicting.Evicting"]),
        ("`kube.clients.evictions.Evicting` has it", ["kube.clients.evictions.Evicting"]),
        ("see koordebpf.policy.decided", ["koordebpf.policy.decided"]),
        ("act/evict/api.py, tests/run.py, koordebpf/units.py, kernel/sched/psi.c and urllib3/connection.py", []),
        ("`kube.clients.evictions.KubeActions`, `policy.decide` and report.listen", []),
    ):
        assert stale(text, Path(__file__)) == found


def test_modules_that_prose_names_exist() -> None:
    wrong = (
        f"{file}:{line}: {name}"
        for file in FILES
        if not any(file.startswith(each) for each in _EXAMPLES)
        for path in [ROOT / file]
        # What names nothing stale as a whole needs not be parsed.
        if path.suffix in {".py", *_PAGES} and path.is_file() and stale(path.read_text(), path)
        for line, text in prose(path)
        for name in stale(text, path)
    )
    report(
        wrong,
        "docstrings, comments and pages name these files and modules, which are not there: write where they are now",
    )
