"""A file is made when a reader would look for it by that name: a small one that one other imports joins that one."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tests.rules.modules import MODULES, PACKAGE, tree
from tests.rules.offenders import report
from tests.rules.test_circles import imports_of, name_of

LEAST_LINES = 40
# Files that are small and have one importer, and why. It only shrinks: one that needs no reason any more fails a test.
REASONS = {
    "jobs/usage_series/values.py": "each job's settings are in its values.py, which the configuration imports",
    "kube/sources/cnr.py": "a resource that is watched, by its name",
}


def alone_and_small(modules: Mapping[str, ast.Module], lines: Mapping[str, int]) -> dict[str, str]:
    """Return the modules below the limit that exactly one other imports, with that one.

    What none imports is found by its name: a command, a runner, a job.
    """
    importers: dict[str, list[str]] = {}
    for name, imported in imports_of(modules).items():
        for each in imported:
            importers.setdefault(each, []).append(name)
    return {each: by[0] for each, by in importers.items() if len(by) == 1 and lines[each] < LEAST_LINES}


def found() -> dict[str, str]:
    names = {name_of(path): path for path in MODULES}
    lines = {name: len(path.read_text().splitlines()) for name, path in names.items()}
    alone = alone_and_small({name: tree(path) for name, path in names.items()}, lines)
    return {
        names[name].relative_to(PACKAGE).as_posix(): by
        for name, by in alone.items()
        if names[name].name != "__init__.py"
    }


def test_a_small_file_has_more_than_one_importer() -> None:
    wrong = [f"{path}: join it to {by}" for path, by in sorted(found().items()) if path not in REASONS]
    report(wrong, f"files below {LEAST_LINES} lines that one other imports")


def test_reasons_for_small_files_only_become_fewer() -> None:
    report(sorted(REASONS.keys() - found().keys()), "these need no reason any more: remove them here")
    assert all(REASONS.values())


def test_a_small_file_with_one_importer_is_found() -> None:
    again = "from p.c import Y\n"
    sources = {"p": "", "p.a": "from p.b import X\nfrom p import c\n", "p.b": "", "p.c": "", "p.d": again}
    modules = {name: ast.parse(text) for name, text in sources.items()}
    assert alone_and_small(modules, dict.fromkeys(sources, 39) | {"p": 40}) == {"p.b": "p.a"}
    assert alone_and_small(modules, dict.fromkeys(sources, 40)) == {}
