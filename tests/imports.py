"""Which test modules reach a file by imports: a static graph of the repository's Python, without running any of it.

A module reaches what it imports, also in a function and in code it hands to another Python, the `__init__` of the
packages above, and the `conftest.py` of its folder and those above. One that starts `python -m koordebpf COMMAND`, or a
script by its name, reaches what that process imports. Not seen: what tests read as text (house rules, pages); `make
lint` runs most of those. `python -m tests.imports FILE…` prints the test modules that reach these files.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("koordebpf", "tests", "deploy", "docs", "vagrant", ".ci")
# Rigs that start an agent in a way that their text does not show: from an image, or under its installed name.
STARTERS = ("tests/cluster/agent_image.py", "tests/cluster/laptop.py", "tests/host/test_provision.py")
# These load their modules by name: a test that imports such a group may call any of its commands.
_COMMANDS = ("koordebpf.cli", "koordebpf.cli.kubectl")
_PROGRAM = "koordebpf"

Graph = Mapping[str, frozenset[str]]  # path, relative to the root → the paths of what it imports

# To parse each file takes seven seconds; to parse only what begins as an import does takes half of one.
_IMPORT = re.compile(r"\b(?:from[ ]+[\w.]+[ ]+import[ ]+(?:\([^)]*\)|[\w, ]+)|import[ ]+[\w., ]+)")
_STARTED = re.compile(r"""-m["', \n]+([a-z]\w*(?:\.\w+)*)(?:["'],\s*["']([a-z-]+)["']|[ ]([a-z-]+))?""")
_SCRIPT = re.compile(r"""["']([\w./-]+\.py)["']""")


def graph(sources: Mapping[str, str]) -> Graph:
    """Return the graph of these modules: path → text. A file that is gone counts, with an empty text."""
    modules = {_name(path): path for path in sources}
    public = {path: dict(_names(path, text)) for path, text in sources.items() if path.endswith("/__init__.py")}
    found = {}
    for path, text in sources.items():
        reached = {path for name in _imported(path, text, modules, public) for path in _loaded(name, modules)}
        found[path] = frozenset(reached | _conftests(path, sources)) - {path}
    return found


def importers(imports: Graph, paths: Iterable[str]) -> dict[str, int]:
    """Return the test modules that reach one of the paths, and over how many imports: 1 for a direct one."""
    above: dict[str, set[str]] = {}
    for path, imported in imports.items():
        for each in imported:
            above.setdefault(each, set()).add(path)
    far = dict.fromkeys(paths, 0)
    waiting = deque(far)
    while waiting:
        at = waiting.popleft()
        for path in above.get(at, set()) - far.keys():
            far[path] = far[at] + 1
            waiting.append(path)
    return {path: distance for path, distance in sorted(far.items()) if is_test(path)}


def is_test(path: str) -> bool:
    """Tell whether pytest collects it."""
    return path.startswith("tests/") and PurePosixPath(path).match("test_*.py")


def sources(root: Path = ROOT) -> dict[str, str]:
    """Return the text of each Python file of the repository."""
    found = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py")))
    return {path.relative_to(root).as_posix(): path.read_text() for path in found}


def _name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _loaded(name: str, modules: Mapping[str, str]) -> Iterator[str]:
    parts = name.split(".")
    yield from (modules[above] for end in range(1, len(parts) + 1) if (above := ".".join(parts[:end])) in modules)


# (what it is called in the module, the dotted name it has)
def _names(path: str, text: str) -> Iterator[tuple[str, str]]:
    for statement in _IMPORT.findall(text):
        try:
            (node,) = ast.parse(statement.strip().rstrip(",")).body
        except (SyntaxError, ValueError):  # a sentence
            continue
        match node:
            case ast.Import(names=names):
                yield from ((each.asname or each.name, each.name) for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                whole = ".".join([*PurePosixPath(path).parent.parts[: 1 - level or None], *filter(None, [module])])
                base = whole if level else module or ""
                yield from ((each.asname or each.name, f"{base}.{each.name}") for each in names)


def _imported(
    path: str, text: str, modules: Mapping[str, str], public: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    is_alone = not path.startswith((_PROGRAM, "tests"))  # a script's own folder is on its path
    for _, name in _names(path, text):
        yield name
        package, _, last = name.rpartition(".")
        if again := public.get(modules.get(package, ""), {}).get(last):
            yield again
        if package in _COMMANDS and name not in modules and is_test(path):
            yield from _children(package, modules)
        if is_alone:
            yield ".".join([*PurePosixPath(path).parent.parts, name])
    starts = [(module, one or other) for module, one, other in _STARTED.findall(text)]
    starts += [(_PROGRAM, "")] if path in STARTERS else []
    for module, command in starts if path.startswith("tests/") else ():
        yield module
        yield f"{module}.__main__"
        if module == _PROGRAM:
            (cli, _) = _COMMANDS
            name = f"{cli}.{command.replace('-', '_')}"
            yield from [name] if name in modules else _children(cli, modules)
            yield from [again] if (again := public.get(modules.get(name, ""), {}).get(command)) else []
    for script in _SCRIPT.findall(text) if path.startswith("tests/") else ():
        yield from (_name((folder / script).as_posix()) for folder in (PurePosixPath(path).parent, PurePosixPath()))


def _children(package: str, modules: Mapping[str, str]) -> list[str]:
    return [name for name in modules if name.rpartition(".")[0] == package]


def _conftests(path: str, sources: Mapping[str, str]) -> set[str]:
    if not path.startswith("tests/"):
        return set()
    return {each for above in PurePosixPath(path).parents if (each := (above / "conftest.py").as_posix()) in sources}


def main(arguments: list[str]) -> int:
    """Print the test modules that reach the files, the nearest first."""
    paths = [Path(each).resolve().relative_to(ROOT).as_posix() for each in arguments]
    found = importers(graph(dict.fromkeys(paths, "") | sources()), paths)
    print(*sorted(found, key=lambda path: (found[path], path)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
