"""Move and join modules of the package, and rewrite what names them in code, tests and pages.

A plan is a Python file with a list `PLAN` of (new module, [old modules]), named as below `koordebpf`: the bodies of the
old ones become the new one's, in this order, with the docstring of the last; constants come first. `python -m
tests.moves PLAN` makes it so; a new folder needs its `__init__.py` first. Two different definitions of one name are
listed, and left to be renamed by hand. Afterwards `make lint` and `make same` say what is left. Kept until each
strategy, job and command has its folder.
"""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = "koordebpf"
_TEXTS = frozenset({".py", ".md", ".toml", ".txt", ".sh", ".yaml"})
_LEFT_ALONE = ("tests/ledger.json", "tests/golden/")


def path_of(module: str) -> Path:
    """Return the file of a module or a package, by its name below the package."""
    base = ROOT / _PACKAGE / module.replace(".", "/")
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def join(new: str, olds: Sequence[str]) -> list[str]:
    """Write a module from the bodies of others, which go; return the names that two of them define differently."""
    whole = {f"{_PACKAGE}.{each}" for each in olds}
    imports: list[str] = []
    typing: list[str] = []
    bodies: list[str] = []
    seen: dict[str, str] = {}
    clashes: list[str] = []
    for old in olds:
        tree, text = ast.parse(path_of(old).read_text()), path_of(old).read_text()
        lines = text.splitlines(keepends=True)
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += _lines_of([node], whole)
            elif _is_type_checking(node):
                typing += _lines_of(node.body, whole)  # type: ignore[attr-defined]
            else:
                continue
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
        first = tree.body[0]
        lines[first.lineno - 1 : first.end_lineno] = [""] * ((first.end_lineno or 0) - first.lineno + 1)
        body = "".join(lines).strip("\n")
        for name, source in _definitions(body).items():
            if seen.get(name) == source:
                body = body.replace(source, "", 1)
            elif name in seen:
                clashes.append(f"{old}: {name}")
            seen[name] = source
        bodies.append(body)
    docstring = ast.get_docstring(ast.parse(path_of(olds[-1]).read_text()), clean=False)
    parts = [f'"""{docstring}"""', "from __future__ import annotations", "\n".join(dict.fromkeys(imports))]
    if typing := [line for line in dict.fromkeys(typing) if line not in imports]:
        parts.append("if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in typing))
    largest = max(olds, key=lambda each: path_of(each).stat().st_size)
    aside = ROOT / _PACKAGE / "joined_module.py"
    _git("mv", path_of(largest), aside)
    for old in olds:
        if old != largest:
            _git("rm", "-qf", path_of(old))
    target = (ROOT / _PACKAGE / new.replace(".", "/")).with_suffix(".py")
    target.parent.mkdir(parents=True, exist_ok=True)
    _git("mv", aside, target)
    target.write_text(_constants_first("\n\n".join(parts), "\n\n\n".join(filter(None, bodies))))
    return clashes


def rewrite(moved: Mapping[str, str]) -> None:
    """Let every file of the repository name the new modules, as a.b.c, as a/b/c.py and as `from a.b import c`."""
    whole = {f"{_PACKAGE}.{old}": f"{_PACKAGE}.{new}" for old, new in moved.items()}
    files = {_file(old): _file(new) for names in (whole, moved) for old, new in names.items()}
    dotted = _any_of(whole, r"(?<![\w.])", r"(?!\w)")
    short = _any_of(moved, r"(?<![\w./])", r"(?=[\s.`:,)\]]|$)")
    slashed = _any_of(files, r"(?<![\w/])", r"(?!\w)")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split():
        path = ROOT / name
        if path.suffix not in _TEXTS or not path.is_file() or name.startswith(_LEFT_ALONE):
            continue
        before = text = path.read_text()
        text = _module_imports(text, whole) if path.suffix == ".py" else text
        text = dotted.sub(lambda found: whole[found[1]], text)
        text = short.sub(lambda found: moved[found[1]], text) if path.suffix != ".toml" else text
        text = slashed.sub(lambda found: files[found[1]], text)
        if text != before:
            path.write_text(text)


def _module_imports(text: str, whole: Mapping[str, str]) -> str:
    def one(found: re.Match[str]) -> str:
        names = [each.strip() for each in found[3].split(",")]
        lines = [each for each in names if f"{found[2]}.{each.split()[0]}" not in whole]
        made = [f"{found[1]}from {found[2]} import {', '.join(lines)}"] if lines else []
        for each in names:
            if (new := whole.get(f"{found[2]}.{each.split()[0]}")) is not None:
                package, _, name = new.rpartition(".")
                made.append(f"{found[1]}from {package} import {name}{each.removeprefix(each.split()[0])}")
                if " as " not in each:
                    renamed[each] = name
        return "\n".join(made)

    renamed: dict[str, str] = {}
    text = re.sub(rf"^( *)from ({_PACKAGE}[\w.]*) import ([\w, ]+)$", one, text, flags=re.MULTILINE)
    uses = _any_of(renamed, r"(?<![\w.\"'/])", r"(?=[.,)\]])") if renamed else None
    return uses.sub(lambda found: renamed[found[1]], text) if uses else text


# What needs no function or class of the module itself, with the comment above it.
def _constants_first(head: str, body: str) -> str:
    tree, lines = ast.parse(body), body.splitlines(keepends=True)
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    first: list[str] = []
    taken: set[int] = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        if own & {each.id for each in names if isinstance(each.ctx, ast.Load)}:
            own |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
            continue
        start = node.lineno - 1
        while start and lines[start - 1].startswith("#"):
            start -= 1
        first += lines[start : node.end_lineno]
        taken |= set(range(start, node.end_lineno or 0))
    rest = "".join(line for number, line in enumerate(lines) if number not in taken)
    return f"{head}\n\n{''.join(first)}\n\n{rest}\n"


def _definitions(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        source = ast.get_source_segment(text, node) or ""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = source
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id: source for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return found


def _lines_of(nodes: Iterable[ast.stmt], joined: set[str]) -> list[str]:
    return [
        ast.unparse(node)
        for node in nodes
        if not (isinstance(node, ast.ImportFrom) and (node.module in joined or node.module == "__future__"))
    ]


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _any_of(names: Iterable[str], before: str, after: str) -> re.Pattern[str]:
    return re.compile(
        f"{before}({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))}){after}", re.MULTILINE
    )


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _git(*arguments: object) -> None:
    subprocess.run(["git", *map(str, arguments)], cwd=ROOT, check=True)


def main(plan: str) -> None:
    """Carry out a plan."""
    moved: dict[str, str] = {}
    for new, olds in runpy.run_path(plan)["PLAN"]:
        for clash in join(new, olds):
            sys.stdout.write(f"two definitions of one name: {clash}\n")
        moved |= {old: new for old in olds if old != new}
    rewrite(moved)
    _git("add", "-A")
    for command in (["check", "-q", "--fix", "--select", "I,F401"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, check=False)


if __name__ == "__main__":
    main(sys.argv[1])
