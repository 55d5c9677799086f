"""No file imports another in a circle, for the type checker or within a function either."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Mapping
from pathlib import Path

from tests.rules.modules import MODULES, PACKAGE, tree
from tests.rules.offenders import report


def imports_of(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return what each module imports of the others: a module, or the package of the name."""
    return {
        name: {
            full if (full := f"{node.module}.{alias.name}") in modules else node.module
            for node in ast.walk(module)
            if isinstance(node, ast.ImportFrom) and node.module in modules
            for alias in node.names
        }
        - {name}
        for name, module in modules.items()
    }


def circle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one circle, the first again at the end; none: there is no circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circle_in(imports_of({name_of(path): tree(path) for path in MODULES}))
    report(found, "these import each other: what they share belongs below them")


def test_a_circle_is_found_also_where_only_the_type_checker_sees_it() -> None:
    later = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import X\n"
    modules = {"p": "", "p.a": "from p import b\n", "p.b": "from p.c import Y\n", "p.c": later}
    graph = imports_of({name: ast.parse(text) for name, text in modules.items()})
    assert set(circle_in(graph)) == {"p.a", "p.b", "p.c"}
    assert circle_in({**graph, "p.c": set()}) == []
